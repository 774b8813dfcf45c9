/* How long steps take, from how long they took: three lines, older samples fading.
 *
 *   decode only         time of the step         over its rows
 *   prefill alone       time of one prefill row  over the position that rows have on average
 *   prefill and decode  the same, of what the step took beyond decoding
 *
 * Rows are dearer at larger positions (attention) and in smaller runs (weights are read for fewer),
 * hence the second and third line are kept apart. Every step weighs the same, whatever its size, so
 * a change of pace is followed within some ten steps. Lines never fall and never start below 0. */
#include "engine/private.h"

static const double FADE = 0.9;

static void put(bt_pace_line *l, double x, double y)
{
    *l = (bt_pace_line){ .w = FADE * l->w + 1, .x = FADE * l->x + x, .y = FADE * l->y + y,
                         .xx = FADE * l->xx + x * x, .xy = FADE * l->xy + x * y };
}

static double at(const bt_pace_line *l, double x)
{
    if (l->w <= 0) {
        return 0;
    }
    const double mean_x = l->x / l->w, mean_y = l->y / l->w;
    const double spread = l->xx / l->w - mean_x * mean_x;
    double slope = spread > 1e-3 * mean_x * mean_x && spread > 0
                           ? (l->xy / l->w - mean_x * mean_y) / spread : 0;
    slope = slope < 0 ? 0 : slope * mean_x > mean_y ? mean_y / mean_x : slope;
    const double y = mean_y + slope * (x - mean_x);
    return y > 0 ? y : 0;
}

double bt_engine_pace_decode_ms(const bt_pace *p, uint32_t n_rows)
{
    return n_rows == 0 ? 0 : at(&p->decode, n_rows);
}

double bt_engine_pace_prefill_ms(const bt_pace *p, bool decoding, double position)
{
    const bt_pace_line *l = decoding && p->mixed.w > 0 ? &p->mixed : &p->alone;
    return at(l->w > 0 ? l : &p->mixed, position);
}

void bt_engine_pace_note(bt_pace *p, uint32_t n_decode, uint32_t n_prefill, double n_keys,
                         double ms)
{
    if (n_prefill == 0) {
        put(&p->decode, n_decode, ms);
        p->decode_rows = FADE * p->decode_rows + n_decode;
        p->decode_ms = FADE * p->decode_ms + ms;
        return;
    }
    const double rest = ms - bt_engine_pace_decode_ms(p, n_decode), y = rest > 0 ? rest : 0;
    put(n_decode > 0 ? &p->mixed : &p->alone, n_keys / n_prefill, y / n_prefill);
    if (n_decode == 0) {
        p->prefill_rows = FADE * p->prefill_rows + n_prefill;
        p->prefill_ms = FADE * p->prefill_ms + y;
    }
}

/* What prefill reaches alone; where it never was alone, what it reaches beside decoding. */
double bt_engine_pace_prefill_rate(const bt_pace *p)
{
    if (p->prefill_ms > 0) {
        return p->prefill_rows / p->prefill_ms;
    }
    return p->mixed.y > 0 ? p->mixed.w / p->mixed.y : 0;
}

double bt_engine_pace_decode_rate(const bt_pace *p)
{
    return p->decode_ms > 0 ? p->decode_rows / p->decode_ms : 0;
}
