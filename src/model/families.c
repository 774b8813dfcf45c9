/* The table of families. */
#include <string.h>

#include "model/family.h"

static const bt_model_family *const families[] = {
    &bt_model_family_llama,
    &bt_model_family_qwen2,
    &bt_model_family_qwen3,
    &bt_model_family_gemma3,
    &bt_model_family_qwen3moe,
    &bt_model_family_qwen35,
    &bt_model_family_qwen35moe,
    &bt_model_family_qwen3next,
};

bt_status bt_model_family_find(const char *name, const bt_model_family **ret_family, bt_error *err)
{
    for (size_t i = 0; i < BT_LEN(families); i++) {
        if (strcmp(name, families[i]->name) == 0) {
            *ret_family = families[i];
            return BT_OK;
        }
    }
    return bt_fail(err, BT_E_UNSUPPORTED, "architecture '%s' is not supported; this build knows %s",
                   name, bt_model_families());
}

const char *bt_model_families(void)
{
    /* A test compares it with the table. */
    return "llama, qwen2, qwen3, gemma3, qwen3moe, qwen35, qwen35moe, qwen3next";
}
