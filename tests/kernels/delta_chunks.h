/* tests/kernels/delta_chunks.h - the delta rule, a chunk of tokens at once; included several times.
 *
 * The form for devices that live on products of matrices, in readable C and in the precision REAL
 * (docs/models/qwen35.md, "In chunks", has the formulas and these names). No device of Baton's runs
 * it, so it is not in src/: here it is held against the token recurrence, ready to be the reference
 * of one that does.
 *
 * One head: q (scaled) and k are unit vectors [n][dk], v [n][dv], state [dv][dk]. decay_ij is taken
 * as the product of the tokens' factors, not as exp(G_i - G_j): where a head forgets fast, G grows
 * large and differences of it lose their digits in f32, products lose nothing.
 */

typedef struct {
    REAL decay[CHUNK_MAX][CHUNK_MAX], since[CHUNK_MAX];     /* since: exp(G) */
    REAL a[CHUNK_MAX][CHUNK_MAX];
    REAL u[CHUNK_MAX][DIM_MAX], w[CHUNK_MAX][DIM_MAX], x[CHUNK_MAX][DIM_MAX];
} IN_REAL(chunk);

static REAL IN_REAL(dot)(const REAL *a, const REAL *b, uint32_t n)
{
    REAL sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* What does not hang on the state: decay, since, and U and W by substitution from the top down. */
static void IN_REAL(prepare)(IN_REAL(chunk) *c, uint32_t n, uint32_t dk, uint32_t dv, const REAL *k,
                             const float *v, const float *keep, const float *beta)
{
    for (uint32_t i = 0; i < n; i++) {
        c->since[i] = (REAL)keep[i] * (i > 0 ? c->since[i - 1] : (REAL)1);
        c->decay[i][i] = 1;
        for (uint32_t at = 0; at < dv; at++) {
            c->u[i][at] = (REAL)beta[i] * (REAL)v[i * dv + at];
        }
        for (uint32_t at = 0; at < dk; at++) {
            c->w[i][at] = (REAL)beta[i] * c->since[i] * k[i * dk + at];
        }
        for (uint32_t j = 0; j < i; j++) {
            c->decay[i][j] = (REAL)keep[i] * c->decay[i - 1][j];
            c->a[i][j] = (REAL)beta[i] * IN_REAL(dot)(k + i * dk, k + j * dk, dk) * c->decay[i][j];
            for (uint32_t at = 0; at < dv; at++) {
                c->u[i][at] -= c->a[i][j] * c->u[j][at];
            }
            for (uint32_t at = 0; at < dk; at++) {
                c->w[i][at] -= c->a[i][j] * c->w[j][at];
            }
        }
    }
}

/* n <= CHUNK_MAX tokens; the state moves on, y is [n][dv]. */
static void IN_REAL(delta_chunk)(IN_REAL(chunk) *c, uint32_t n, uint32_t dk, uint32_t dv,
                                 const REAL *q, const REAL *k, const float *v, const float *keep,
                                 const float *beta, REAL *state, REAL *y)
{
    IN_REAL(prepare)(c, n, dk, dv, k, v, keep, beta);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t at = 0; at < dv; at++) {
            const REAL *row = state + (size_t)at * dk;
            c->x[i][at] = c->u[i][at] - IN_REAL(dot)(c->w[i], row, dk);
            y[i * dv + at] = c->since[i] * IN_REAL(dot)(q + i * dk, row, dk);
        }
        for (uint32_t j = 0; j <= i; j++) {
            const REAL share = IN_REAL(dot)(q + i * dk, k + j * dk, dk) * c->decay[i][j];
            for (uint32_t at = 0; at < dv; at++) {
                y[i * dv + at] += share * c->x[j][at];
            }
        }
    }
    for (uint32_t at = 0; at < dv; at++) {
        REAL *row = state + (size_t)at * dk;
        for (uint32_t l = 0; l < dk; l++) {
            row[l] *= c->since[n - 1];
            for (uint32_t i = 0; i < n; i++) {
                row[l] += c->decay[n - 1][i] * k[i * dk + l] * c->x[i][at];
            }
        }
    }
}
