/* rooms: gguf quant
 *
 * Any bytes either open as a model file, of which then every key, string, array element, getter and
 * tensor byte can be read and the first row of every tensor decoded; or they are refused with
 * BT_E_BADFILE (or what a split file needs) and a printable sentence. Opening them again says the
 * same, although the hash of the names is seeded anew each time.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "unit/gguf/walk.h"

static void check_sentence(bt_status status, const bt_error *err)
{
    BT_ASSERT(status == BT_E_BADFILE || status == BT_E_UNSUPPORTED);
    BT_ASSERT(err->status == status);
    BT_ASSERT(strlen(err->text) > 10);
    for (const char *c = err->text; *c; c++) {
        BT_ASSERT(*c >= 0x20 && *c < 0x7f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t sums[2] = { 0, 0 };
    for (int i = 0; i < 2; i++) {
        bt_gguf *file = NULL;
        bt_error err = { .text = "" };
        const bt_status status = bt_gguf_open_memory(data, size, "fuzz.gguf", &file, &err);
        if (status == BT_OK) {
            sums[i] = walk_file(file);
            bt_gguf_close(file);
        } else {
            BT_ASSERT(!file);
            check_sentence(status, &err);
            sums[i] = walk_bytes(err.text, strlen(err.text));
        }
    }
    BT_ASSERT(sums[0] == sums[1]);
    return 0;
}
