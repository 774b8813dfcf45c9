/* wire/identity.c - version first, then the identity fields in the order of their table. */
#include "wire/identity.h"

#include <inttypes.h>
#include <stdio.h>

static void tell_u32(uint32_t v, char *to, size_t room) { snprintf(to, room, "%" PRIu32, v); }
static void tell_u64(uint64_t v, char *to, size_t room) { snprintf(to, room, "%" PRIu64, v); }

static void tell_digest(bt_digest v, char *to, size_t room)
{
    char text[BT_DIGEST_TEXT_MAX];
    bt_digest_text(&v, text);
    snprintf(to, room, "%s", text);
}

static bool same_u32(uint32_t a, uint32_t b) { return a == b; }
static bool same_u64(uint64_t a, uint64_t b) { return a == b; }
static bool same_digest(bt_digest a, bt_digest b) { return bt_digest_equal(&a, &b); }

/* What a person can do about a difference in `field`. */
static const char *advice(const char *field)
{
    static const struct {
        const char *field, *advice;
    } list[] = {
        {"kv_format", "update the older program"},
        {"geometry", "both must load the same model"},
        {"tokenizer", "both must load the same model file"},
        {"weights", "the tensors differ: both must load the same model file, same quantisation"},
        {"draft", "give both the same draft options"},
        {"type_k", "give both the same -ctk"},
        {"type_v", "give both the same -ctv"},
        {"n_layers", "both must load the same model"},
        {"token_bytes", "both must load the same model with the same -ctk and -ctv"},
    };
    for (size_t i = 0; i < BT_LEN(list); i++) {
        if (strcmp(field, list[i].field) == 0) {
            return list[i].advice;
        }
    }
    return "update the older program";
}

static void name_misfit(bt_wire_misfit *misfit, const char *field, const bt_wire_hello *server,
                        const bt_wire_hello *worker)
{
    char server_model[64], worker_model[64];

    snprintf(misfit->field, sizeof misfit->field, "%s", field);
    misfit->status = BT_E_REFUSED;
    snprintf(misfit->sentence, sizeof misfit->sentence,
             "the server has '%.40s', the worker '%.40s', and their %s differs (%.10s, %.10s): %s",
             bt_wire_text_copy(server->model, server_model, sizeof server_model),
             bt_wire_text_copy(worker->model, worker_model, sizeof worker_model), field,
             misfit->server_value, misfit->worker_value, advice(field));
}

static bool version_fits(const bt_wire_hello *server, const bt_wire_hello *worker,
                         bt_wire_misfit *misfit)
{
    if (server->version_major == worker->version_major &&
        server->version_minor <= worker->version_minor) {
        return true;
    }
    snprintf(misfit->server_value, sizeof misfit->server_value, "%u.%u", server->version_major,
             server->version_minor);
    snprintf(misfit->worker_value, sizeof misfit->worker_value, "%u.%u", worker->version_major,
             worker->version_minor);
    snprintf(misfit->field, sizeof misfit->field, "version");
    misfit->status = BT_E_REFUSED;
    const bool server_older = server->version_major < worker->version_major;
    snprintf(misfit->sentence, sizeof misfit->sentence,
             "the server speaks protocol %s and the worker %s: the first number must be equal and "
             "the server's second not higher; update the %s",
             misfit->server_value, misfit->worker_value, server_older ? "server" : "worker");
    return false;
}

bool bt_wire_identity_fits(const bt_wire_hello *server, const bt_wire_hello *worker,
                           bt_wire_misfit *ret_misfit)
{
    bt_wire_misfit misfit = {.status = BT_OK};

    if (!version_fits(server, worker, &misfit)) {
        *ret_misfit = misfit;
        return false;
    }
#define F(type, name, doc)                                                                         \
    if (!same_##type(server->name, worker->name)) {                                                \
        tell_##type(server->name, misfit.server_value, sizeof misfit.server_value);                \
        tell_##type(worker->name, misfit.worker_value, sizeof misfit.worker_value);                \
        name_misfit(&misfit, #name, server, worker);                                               \
        *ret_misfit = misfit;                                                                      \
        return false;                                                                              \
    }
    BT_WIRE_IDENTITY_FIELDS(F)
#undef F
    return true;
}

bt_wire_reject bt_wire_misfit_reject(const bt_wire_misfit *misfit)
{
    return (bt_wire_reject){
        .status = (uint32_t)misfit->status,
        .field = bt_wire_text_of(misfit->field),
        .server_value = bt_wire_text_of(misfit->server_value),
        .worker_value = bt_wire_text_of(misfit->worker_value),
        .sentence = bt_wire_text_of(misfit->sentence),
    };
}
