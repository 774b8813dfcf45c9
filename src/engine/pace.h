/* engine/pace.h - how long steps take: a fit that bounds prefill while others decode. Private to
 * engine/. Zeroed knows nothing. Threads: owned by one. Failure: none.
 */
#ifndef BT_ENGINE_PACE_H
#define BT_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { double w, x, y, xx, xy; } bt_pace_line;      /* fading sums */

typedef struct {
    bt_pace_line decode, alone, mixed;
    double decode_rows, decode_ms, prefill_rows, prefill_ms;   /* fading sums, for the rates */
} bt_pace;

void bt_engine_pace_note(bt_pace *p, uint32_t n_decode, uint32_t n_prefill, double n_keys,
                         double ms);
double bt_engine_pace_decode_ms(const bt_pace *p, uint32_t n_rows);
/* Of one prefill row at `position`, with or without decoding in the step; 0: not known yet. */
double bt_engine_pace_prefill_ms(const bt_pace *p, bool decoding, double position);
double bt_engine_pace_prefill_rate(const bt_pace *p);         /* rows per ms; 0: not known yet */
double bt_engine_pace_decode_rate(const bt_pace *p);

#endif
