/* model/loader.h - the loader of tensors, for loader.c and weights.c only. */
#ifndef BT_MODEL_LOADER_H
#define BT_MODEL_LOADER_H

#include "model/family.h"

struct bt_model_loader {
    const bt_gguf *file;
    bt_device     *device;
    bt_status      status;           /* sticky */
    bt_error      *err;
    bt_digest     *contents;         /* [n_tensors] */
    bool          *used;             /* [n_tensors] digested, and asked for by the family */
};

void bt_model_digest_tensor(bt_model_loader *l, const bt_gguf_tensor *t);
/* A failure, and false, unless t is n_in x n_out of a type that can be read. */
bool bt_model_tensor_fits(bt_model_loader *l, const bt_gguf_tensor *t, uint32_t n_in,
                          uint32_t n_out);
bt_weight bt_model_load_tensor(bt_model_loader *l, const bt_gguf_tensor *t, bool as_table);

#endif
