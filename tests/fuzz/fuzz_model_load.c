/* rooms: model
 *
 * A file that opens either gives a configuration whose numbers keep every limit, and then a model
 * with its tapes or a refusal; or the configuration is refused with a sentence. Nothing is read
 * beyond the file, whatever its keys say of rows, heads, experts and states.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "device/cpu/cpu.h"
#include "model/model.h"

static void check_sentence(bt_status status, const bt_error *err)
{
    BT_ASSERT(status == BT_E_BADFILE || status == BT_E_UNSUPPORTED || status == BT_E_BADINPUT ||
              status == BT_E_NOTFOUND || status == BT_E_FULL || status == BT_E_DEVICE);
    BT_ASSERT(err->status == status);
    BT_ASSERT(strlen(err->text) > 10);
}

static void check_config(const bt_model_config *c)
{
    BT_ASSERT(c->n_layers >= 1 && c->n_layers + c->n_blocks_behind <= BT_LAYERS_MAX);
    BT_ASSERT(c->n_embd >= 1 && c->n_embd <= BT_WIDTH_MAX && c->n_vocab <= BT_VOCAB_MAX);
    BT_ASSERT(c->n_experts_used <= c->n_experts && c->n_experts <= BT_EXPERTS_MAX);
    BT_ASSERT(c->n_params_active <= c->n_params);
    uint32_t n_attention = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_state_layer l;
        bt_model_state_layer(c, i, &l);
        BT_ASSERT((l.n_tensors != 0) == c->recurrent[i]);
        BT_ASSERT((bt_model_k_dim(c, i) == 0) == c->recurrent[i]);
        BT_ASSERT(bt_model_k_dim(c, i) <= BT_WIDTH_MAX);
        for (uint32_t j = 0; j < l.n_tensors; j++) {
            BT_ASSERT(l.tensors[j].n <= BT_WIDTH_MAX && l.tensors[j].cols <= BT_WIDTH_MAX);
        }
        n_attention += !c->recurrent[i];
    }
    BT_ASSERT(n_attention > 0);
    BT_ASSERT(bt_model_has_state(c) == (bt_model_state_bytes(c) > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bt_model_config config;       /* large */
    const bt_device_cpu_options o = { .isa = BT_ISA_REF, .n_threads = 1, .no_repack = true };
    bt_gguf *file = NULL;
    bt_device *device = NULL;
    bt_model *model = NULL;
    bt_error err = { .text = "" };
    if (bt_gguf_open_memory(data, size, "fuzz.gguf", &file, NULL) != BT_OK) {
        return 0;
    }
    bt_status status = bt_model_config_read(file, &config, &err);
    if (status == BT_OK) {
        check_config(&config);
        BT_ASSERT(bt_device_cpu_open(&o, &device, NULL) == BT_OK);
        status = bt_model_load(file, device, &model, &err);
    }
    if (status != BT_OK) {
        BT_ASSERT(!model);
        check_sentence(status, &err);
    }
    bt_model_destroy(model);
    bt_device_close(device);
    bt_gguf_close(file);
    return 0;
}
