/* handoff/identity.c - see identity.h. */
#include "handoff/identity.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine/snapshots.h"
#include "kv/codec.h"
#include "quant/types.h"

bt_wire_hello bt_handoff_hello(const bt_engine *engine, uint64_t session, const char *numerics)
{
    const bt_engine_options *o = bt_engine_options_of(engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);
    const bt_kv_form stored = bt_kv_codec_stored(layout);
    const bt_model_identity *id = bt_model_identity_of(o->model);
    return (bt_wire_hello){
        .version_major = BT_WIRE_VERSION_MAJOR,
        .version_minor = BT_WIRE_VERSION_MINOR,
        .session = session,
        .kv_format = BT_KV_FORMAT,
        .geometry = id->geometry,
        .tokenizer = id->tokenizer,
        .weights = id->weights,
        .type_k = (uint32_t)layout->type_k,
        .type_v = (uint32_t)layout->type_v,
        .n_layers = layout->n_layers,
        .token_bytes = bt_kv_codec_token_bytes(&stored),
        .numerics = bt_wire_text_of(numerics),
        .model = bt_wire_text_of(bt_model_config_of(o->model)->name),
        .program = bt_wire_text_of(BT_WIRE_PROGRAM),
    };
}

/* "q8_0", as it is given to -ctk; "type 99" for one that this program does not know. */
static void name_type(uint32_t id, char *to, size_t room)
{
    const bt_type_info *type = bt_quant_type_find(id);
    if (!type) {
        snprintf(to, room, "type %u", id);
        return;
    }
    snprintf(to, room, "%s", type->name);
    for (; *to; to++) {
        *to = (char)tolower((unsigned char)*to);
    }
}

bool bt_handoff_identity_fits(const bt_wire_hello *server, const bt_wire_hello *worker,
                              bt_wire_misfit *ret_misfit)
{
    bt_wire_misfit *m = ret_misfit;
    if (bt_wire_identity_fits(server, worker, m)) {
        return true;
    }
    const bool k = strcmp(m->field, "type_k") == 0;
    if (k || strcmp(m->field, "type_v") == 0) {
        name_type(k ? server->type_k : server->type_v, m->server_value, sizeof m->server_value);
        name_type(k ? worker->type_k : worker->type_v, m->worker_value, sizeof m->worker_value);
        snprintf(m->sentence, sizeof m->sentence,
                 "the server keeps %s as %s, the worker as %s: give both the same %s",
                 k ? "keys" : "values", m->server_value, m->worker_value, k ? "-ctk" : "-ctv");
    }
    return false;
}

bt_status bt_handoff_states_layer_bytes(const bt_engine *engine, uint64_t **ret_bytes,
                                        bt_error *err)
{
    const uint32_t n_layers = bt_engine_kv_layout(engine)->n_layers;
    *ret_bytes = NULL;
    if (bt_engine_state_bytes(engine) == 0) {
        return BT_OK;
    }
    uint64_t *bytes = bt_alloc_zero(BT_MEM_handoff, n_layers, sizeof *bytes);
    if (!bytes) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the sizes of %u states", n_layers);
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        bytes[i] = bt_engine_state_layer_bytes(engine, i);
        if (bytes[i] > INT32_MAX) {
            bt_free(bytes);
            return bt_fail(err, BT_E_UNSUPPORTED, "the state of layer %u takes %llu bytes: too "
                           "large for the wire", i, (unsigned long long)bytes[i]);
        }
    }
    *ret_bytes = bytes;
    return BT_OK;
}
