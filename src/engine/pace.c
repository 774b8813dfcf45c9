/* How long steps take, from how long they took. Two small fits, older samples fading:
 *
 *   decode only:   t = a + b * rows
 *   with prefill:  t - (decoding's part) = c * rows + d * keys
 *
 * `keys` is the number of cached positions that the prefill rows look at: attention's part, which
 * grows with the position. Negative coefficients make no sense and are taken for zero. */
#include "engine/private.h"

static const double FADE = 0.95;

static void fade(double *const sums[], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        *sums[i] *= FADE;
    }
}

/* a and b of the decode line. */
static void decode_line(const bt_pace *p, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    if (p->w <= 0) {
        return;
    }
    const double mean_n = p->n / p->w, mean_t = p->t / p->w;
    const double var = p->nn / p->w - mean_n * mean_n;
    double b = var > 1e-6 ? (p->nt / p->w - mean_n * mean_t) / var : 0;
    b = b < 0 ? 0 : b * mean_n > mean_t ? mean_t / mean_n : b;
    *ret_a = mean_t - b * mean_n;
    *ret_b = b;
}

double bt_pace_decode_ms(const bt_pace *p, uint32_t n_rows)
{
    double a, b;
    decode_line(p, &a, &b);
    return n_rows == 0 ? 0 : a + b * n_rows;
}

void bt_pace_note(bt_pace *p, uint32_t n_decode, uint32_t n_prefill, double n_keys, double ms)
{
    if (n_prefill == 0) {
        double *sums[] = { &p->w, &p->n, &p->t, &p->nn, &p->nt };
        fade(sums, BT_LEN(sums));
        const double n = n_decode;
        p->w += 1;
        p->n += n;
        p->t += ms;
        p->nn += n * n;
        p->nt += n * ms;
        return;
    }
    const double m = n_prefill, rest = ms - bt_pace_decode_ms(p, n_decode);
    const double y = rest > 0 ? rest : 0;
    double *sums[] = { &p->mm, &p->mk, &p->kk, &p->my, &p->ky, &p->m, &p->y };
    fade(sums, BT_LEN(sums));
    p->mm += m * m;
    p->mk += m * n_keys;
    p->kk += n_keys * n_keys;
    p->my += m * y;
    p->ky += n_keys * y;
    p->m += m;
    p->y += y;
}

double bt_pace_prefill_ms(const bt_pace *p, double position)
{
    if (p->mm <= 0) {
        return 0;
    }
    const double determinant = p->mm * p->kk - p->mk * p->mk;
    double c = p->my / p->mm, d = 0;
    if (determinant > 1e-3 * p->mm * p->kk) {    /* else rows and keys cannot be told apart */
        const double c2 = (p->my * p->kk - p->ky * p->mk) / determinant;
        const double d2 = (p->ky * p->mm - p->my * p->mk) / determinant;
        if (c2 < 0) {
            c = 0;
            d = p->ky / p->kk;
        } else if (d2 >= 0) {
            c = c2;
            d = d2;
        }
    }
    return c + d * position;
}

double bt_pace_prefill_rate(const bt_pace *p)
{
    return p->y > 0 ? p->m / p->y : 0;
}

double bt_pace_decode_rate(const bt_pace *p)
{
    return p->t > 0 ? p->n / p->t : 0;
}
