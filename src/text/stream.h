/* text/stream.h - from sampled tokens to text that may be shown.
 *
 * Takes the bytes of one token after the other and releases what can no longer change: it holds
 * back an incomplete UTF-8 sequence and whatever could still become a stop string, and replaces
 * invalid bytes by U+FFFD, one per maximal subpart. So the concatenation of what is released is
 * valid UTF-8, never contains a stop string, and does not depend on how tokens cut the text.
 *
 * Lifetime: init (copies the stops) to done. Threads: owned by one. Failure: init only; put()
 * appends to a caller's buffer that was reserved (bt_text_stream_release_max) and cannot fail.
 */
#ifndef BT_TEXT_STREAM_H
#define BT_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct { const char *text; size_t size; } bt_stop;

typedef struct bt_text_stream bt_text_stream;

BT_MUST_CHECK bt_status bt_text_stream_create(const bt_stop *stops, size_t n_stops,
                                              size_t piece_max, bt_text_stream **ret_stream,
                                              bt_error *err);
void   bt_text_stream_destroy(bt_text_stream *s);
/* Most bytes that one put() or end() can release. */
size_t bt_text_stream_release_max(const bt_text_stream *s);
/* Writes released text to `to` (room for release_max) and returns its size. *ret_stop: index of the
 * stop string now complete (it and all after it are dropped), or -1. */
size_t bt_text_stream_put(bt_text_stream *s, const char *bytes, size_t size, char *to,
                          int *ret_stop);
/* Generation ended without a stop string: releases what was held. (A stop string that only the
 * U+FFFD of an unfinished character completes is left out, unreported.) */
size_t bt_text_stream_end(bt_text_stream *s, char *to);

#endif
