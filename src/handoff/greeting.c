/* handoff/greeting.c - see greeting.h. */
#include "handoff/greeting.h"

#include "handoff/rows.h"

bt_wire_hello bt_handoff_hello(const bt_engine *engine, uint64_t session, const char *numerics)
{
    const bt_engine_options *o = bt_engine_options_of(engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);
    const bt_rows_form stored = bt_rows_stored(layout);
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
        .token_bytes = bt_rows_token_bytes(&stored),
        .numerics = bt_wire_text_of(numerics),
        .model = bt_wire_text_of(bt_model_config_of(o->model)->name),
        .program = bt_wire_text_of(BT_HANDOFF_PROGRAM),
    };
}
