/* What recurrent layers keep per sequence. */
#include "base/check.h"
#include "model/family.h"

void bt_model_state_layer(const bt_model_config *c, uint32_t layer, bt_state_layer *ret_layer)
{
    BT_ASSERT(layer < c->n_layers);
    *ret_layer = (bt_state_layer){ 0 };
    if (c->recurrent[layer]) {
        const bt_model_family *family = NULL;
        BT_ASSERT(bt_model_family_find(c->architecture, &family, NULL) == BT_OK);
        BT_ASSERT(family->state);
        family->state(c, ret_layer);
    }
}

bool bt_model_has_state(const bt_model_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->recurrent[i]) {
            return true;
        }
    }
    return false;
}

uint64_t bt_model_state_bytes(const bt_model_config *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_state_layer l;
        bt_model_state_layer(c, i, &l);
        for (uint32_t j = 0; j < l.n_tensors; j++) {
            sum += bt_ops_state_tensor_bytes(&l.tensors[j]);
        }
    }
    return sum;
}
