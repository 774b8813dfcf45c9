/* sample/options.h - what a model file suggests for sampling, and the check of options.
 *
 * A file may carry `general.sampling.*`: values its maker recommends. They are defaults: what a
 * command line or a request says comes first.
 *
 *   bt_sample_hints hints;
 *   BT_TRY(bt_sample_hints_read(file, &hints, err));
 *   request.sampling = hints.options;
 *
 * Threads: any. Failure: a value that cannot be one, with the key and the range.
 */
#ifndef BT_SAMPLE_OPTIONS_H
#define BT_SAMPLE_OPTIONS_H

#include "gguf/gguf.h"
#include "sample/sampler.h"

typedef struct {
    bt_sampler_options options;    /* bt_sample_defaults(), with the file's values in place */
    uint32_t n_hints;              /* values that came from the file */
    char     unsupported[256];     /* keys that this build does not follow, with commas; warn */
} bt_sample_hints;

BT_MUST_CHECK bt_status bt_sample_hints_read(const bt_gguf *file, bt_sample_hints *ret_hints,
                                             bt_error *err);
BT_MUST_CHECK bt_status bt_sample_options_check(const bt_sampler_options *o, uint32_t n_vocab,
                                                bt_error *err);

#endif
