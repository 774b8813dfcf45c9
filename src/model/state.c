/* What recurrent layers keep per sequence. */
#include "base/check.h"
#include "model/model.h"

void bt_model_state_layer(const bt_model_config *c, uint32_t layer, bt_state_layer *ret_layer)
{
    BT_ASSERT(layer < c->n_layers);
    *ret_layer = (bt_state_layer){ 0 };
    if (c->recurrent[layer]) {
        *ret_layer = (bt_state_layer){
            .conv_rows = c->n_taps - 1,
            .conv_cols = (2 * c->n_delta_k + c->n_delta_v) * c->delta_dim,
            .n_heads = c->n_delta_v, .dk = c->delta_dim, .dv = c->delta_dim
        };
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
        sum += (uint64_t)l.conv_rows * l.conv_cols + (uint64_t)l.n_heads * l.dk * l.dv;
    }
    return sum * sizeof(float);
}
