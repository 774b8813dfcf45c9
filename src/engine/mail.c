/* How other threads reach the engine's: a list of submitted requests and a flag that says "look
 * again" (cancel, release, room in a ring, rows committed). */
#include "base/memory.h"
#include "engine/private.h"

void bt_engine_wake(bt_engine *e)
{
    pthread_mutex_lock(&e->mail_lock);
    e->woken = true;
    pthread_cond_signal(&e->mail);
    pthread_mutex_unlock(&e->mail_lock);
}

/* Mail lock held. A cancelled request stays in the queue until the step that runs has ended, but
 * takes nobody's place there. */
static void count_line(bt_engine *e)
{
    e->mail_round++;
    e->n_queued = e->n_in_line = 0;
    for (bt_request *r = e->waiting; r; r = r->next) {
        e->n_in_line++;
        if (!atomic_load_explicit(&r->cancelled, memory_order_relaxed)) {
            r->counted_round = e->mail_round;
            e->n_queued++;
        }
    }
}

bool bt_engine_mail_take(bt_engine *e)
{
    bt_request **end = &e->waiting;
    while (*end) {
        end = &(*end)->next;
    }
    pthread_mutex_lock(&e->mail_lock);
    e->woken = false;
    *end = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    count_line(e);
    e->n_free = e->options.n_parallel - e->n_active;
    const bool closing = e->closing;
    pthread_mutex_unlock(&e->mail_lock);
    return !closing;
}

void bt_engine_mail_wait(bt_engine *e)
{
    pthread_mutex_lock(&e->mail_lock);
    while (!e->woken) {
        pthread_cond_wait(&e->mail, &e->mail_lock);
    }
    pthread_mutex_unlock(&e->mail_lock);
}

void bt_engine_mail_close(bt_engine *e)
{
    pthread_mutex_lock(&e->mail_lock);
    e->closing = true;
    e->woken = true;
    pthread_cond_signal(&e->mail);
    pthread_mutex_unlock(&e->mail_lock);
}

/* Requests may be released after the engine's end; what they still touch then is only this. */
void bt_engine_unref(bt_engine *e)
{
    if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_destroy(&e->mail_lock);
        pthread_cond_destroy(&e->mail);
        pthread_mutex_destroy(&e->import_lock);
        pthread_cond_destroy(&e->writers_left);
        pthread_mutex_destroy(&e->stats_lock);
        bt_free(e);
    }
}
