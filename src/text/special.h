/* text/special.h - finds the tokens that are cut out of a text before anything else is tokenised:
 * control, unknown and user-defined ones.
 *
 * Longer tokens go first, tokens of equal length by id, each from left to right over what is still
 * uncut. Control and unknown tokens are only found where nobody but the template wrote.
 *
 * Lifetime: create to destroy; borrows the vocabulary. Threads: immutable after create.
 * Failure:  create, cut (memory).
 */
#ifndef BT_TEXT_SPECIAL_H
#define BT_TEXT_SPECIAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/vocab.h"

typedef struct bt_special bt_special;

/* A part of the text that users wrote. */
typedef struct { size_t begin, end; } bt_user_range;

/* A token cut out; the bytes from begin to end are gone, with stripped blanks. */
typedef struct {
    uint32_t begin, end, id;
} bt_cut;

typedef struct {
    bt_cut *at;
    size_t  count, capacity;
} bt_cuts;

BT_MUST_CHECK bt_status bt_text_special_create(const bt_vocab *v, bt_special **ret_special,
                                               bt_error *err);
void bt_text_special_destroy(bt_special *s);         /* NULL is fine */

/* `users` ascending and not touching. The cuts come in order of the text. `cuts` begins zeroed;
 * free it with bt_text_cuts_done. */
BT_MUST_CHECK bt_status bt_text_special_cut(const bt_special *s, const char *text, size_t size,
                                            const bt_user_range *users, size_t n_users,
                                            bt_cuts *cuts, bt_error *err);
void bt_text_cuts_done(bt_cuts *c);

#endif
