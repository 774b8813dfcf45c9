/* link/tls.c - TLS 1.3 with a pre-shared key over TCP.
 *
 * No certificates: who has the key is the peer. Keys are still agreed on anew for each connection
 * (psk_dhe_ke), so recorded traffic stays closed when the key leaks later; there are no tickets, no
 * early data, and nothing older than 1.3.
 *
 * OpenSSL never touches the socket: it writes records to `out` and reads through us. So many
 * records leave in one system call, a write cannot raise SIGPIPE, and what is sent needs no poll
 * inside. An SSL object is not for two threads at once: `lock` is held around every use.
 */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "link/key.h"
#include "link/transport.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0                  /* macOS: SO_NOSIGPIPE is set on the socket instead */
#endif

enum {
    RECORD_BYTES = 16384,
    RECORD_ROOM = RECORD_BYTES + 512,   /* a record with all that belongs to it */
    OUT_BYTES = 16 * RECORD_ROOM,       /* 256 KiB a system call */
    READ_AHEAD_BYTES = 128 << 10,
    REKEY_BYTES = 64 << 20              /* AES-GCM allows a thousand times as much with one key */
};

/* Both have SHA-256, which the key is bound to. */
static const char cipher_list[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
static const unsigned char aes_128_gcm_sha256[2] = {0x13, 0x01};
static const unsigned char identity[] = "baton 1";

typedef struct {
    bt_transport    base;               /* first: a tls is a transport */
    pthread_mutex_t lock;               /* guards the rest */
    SSL            *ssl;
    bt_link_key     key;
    uint8_t        *out;                /* [OUT_BYTES] records; [out_first, out_end) to be sent */
    size_t          out_first, out_end;
    size_t          accepted;           /* plain bytes in `out` that send() has not told of yet */
    uint64_t        since_rekey;
    bool            answered;           /* a byte of the peer has come */
    bool            established;
    bt_error        damage;             /* what reading has failed of; TLS says it only once */
} tls;

static tls *tls_of(bt_transport *t) { return (tls *)(void *)t; }

/* ---- OpenSSL's view of the wire ---- */

static int wire_write(BIO *bio, const char *data, int size)
{
    tls *t = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    const size_t room = OUT_BYTES - t->out_end;
    if (room == 0) {
        BIO_set_retry_write(bio);
        return -1;
    }
    const size_t n = (size_t)size < room ? (size_t)size : room;
    memcpy(t->out + t->out_end, data, n);
    t->out_end += n;
    return (int)n;
}

static int wire_read(BIO *bio, char *to, int size)
{
    tls *t = BIO_get_data(bio);
    ssize_t n;

    BIO_clear_retry_flags(bio);
    do {
        n = recv(t->base.fd, to, (size_t)size, 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        BIO_set_retry_read(bio);
    }
    t->answered = t->answered || n > 0;
    return (int)n;
}

static long wire_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *wire_method;
static pthread_once_t wire_method_once = PTHREAD_ONCE_INIT;

static void make_wire_method(void)
{
    wire_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton link");
    if (wire_method != NULL) {
        BIO_meth_set_write(wire_method, wire_write);
        BIO_meth_set_read(wire_method, wire_read);
        BIO_meth_set_ctrl(wire_method, wire_control);
    }
}

/* ---- the key, as TLS knows it ---- */

static SSL_SESSION *make_session(SSL *ssl)
{
    const tls *t = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *s = SSL_SESSION_new();

    if (s == NULL || cipher == NULL ||
        !SSL_SESSION_set1_master_key(s, t->key.bytes, sizeof t->key.bytes) ||
        !SSL_SESSION_set_cipher(s, cipher) ||
        !SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION)) {
        SSL_SESSION_free(s);
        return NULL;
    }
    return s;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **ret_identity, size_t *ret_size,
                   SSL_SESSION **ret_session)
{
    (void)md;
    *ret_identity = identity;
    *ret_size = sizeof identity - 1;
    *ret_session = make_session(ssl);
    return *ret_session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *name, size_t size, SSL_SESSION **ret_session)
{
    const bool ours = size == sizeof identity - 1 && memcmp(name, identity, size) == 0;
    *ret_session = ours ? make_session(ssl) : NULL;
    return 1;
}

/* ---- failures ---- */

/* Reasons of which a key is the cause: none, another, or none on the other side. */
static bool is_key_trouble(unsigned long error)
{
    switch (ERR_GET_REASON(error)) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_BAD_PSK:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_CERTIFICATE_SET:
    case SSL_R_MISSING_PSK_KEX_MODES_EXTENSION:
        return true;
    default:
        return false;
    }
}

static bool is_not_tls(unsigned long error)
{
    switch (ERR_GET_REASON(error)) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_BAD_RECORD_TYPE:
        return true;
    default:
        return false;
    }
}

static bt_io fail(const tls *t, unsigned long error, bt_error *err)
{
    const char *reason = ERR_reason_error_string(error);

    if (!t->established && is_key_trouble(error)) {
        bt_fail(err, BT_E_AUTH, "%s: the keys differ; give both sides the same --key-file",
                t->base.peer);
    } else if (!t->established && is_not_tls(error)) {
        bt_fail(err, BT_E_AUTH,
                "%s: does not encrypt, but this side has a key; give both the same --key-file",
                t->base.peer);
    } else if (t->established && ERR_GET_REASON(error) < SSL_AD_REASON_OFFSET) {
        /* Our own finding, not an alert of the peer. */
        bt_fail(err, BT_E_PROTOCOL, "%s: TLS: bytes were damaged or forged on the way: %s",
                t->base.peer, reason != NULL ? reason : "failed");
    } else {
        bt_fail(err, t->established ? BT_E_LOST : BT_E_AUTH, "%s: TLS: %s", t->base.peer,
                reason != NULL ? reason : "failed");
    }
    return BT_IO_FAILED;
}

/* After an SSL function said it is not done. */
static bt_io judge(tls *t, int result, int socket_error, bt_error *err)
{
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return BT_IO_WANT_READ;
    case SSL_ERROR_WANT_WRITE:
        return BT_IO_WANT_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return BT_IO_END;
    case SSL_ERROR_SYSCALL:
        if (socket_error == 0) {
            return BT_IO_END;
        }
        bt_fail(err, BT_E_LOST, "%s: %s", t->base.peer,
                socket_error == ECONNRESET ? "connection reset; the process there has ended"
                                           : strerror(socket_error));
        return BT_IO_FAILED;
    default: {
        const unsigned long error = ERR_get_error();
#ifdef SSL_R_UNEXPECTED_EOF_WHILE_READING
        /* Closed without saying so: frames notice by themselves when one is missing. */
        if (ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
            return BT_IO_END;
        }
#endif
        return fail(t, error, err);
    }
    }
}

/* Who hangs up on our greeting without a word most likely did not understand it. */
static bt_io hung_up(const tls *t, bt_error *err)
{
    bt_fail(err, BT_E_AUTH,
            "%s: closed the connection instead of encrypting; does it have the same --key-file?",
            t->base.peer);
    return BT_IO_FAILED;
}

/* To somebody who did not even speak TLS OpenSSL says nothing; a link without a key understands
 * this alert (handshake failure) as well as TLS does. */
static void say_no(tls *t)
{
    static const uint8_t alert[] = {0x15, 3, 3, 0, 2, 2, 40};
    memcpy(t->out, alert, sizeof alert);
    t->out_end = sizeof alert;
}

/* ---- the transport ---- */

/* What is in `out` goes to the socket. */
static bt_io flush(tls *t, bt_error *err)
{
    while (t->out_first < t->out_end) {
        const ssize_t n = send(t->base.fd, t->out + t->out_first, t->out_end - t->out_first,
                               MSG_NOSIGNAL);
        if (n >= 0) {
            t->out_first += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
            return BT_IO_WANT_WRITE;
        } else if (errno != EINTR) {
            bt_fail(err, BT_E_LOST, "%s: %s", t->base.peer,
                    errno == EPIPE || errno == ECONNRESET
                            ? "connection reset; the process there has ended"
                            : strerror(errno));
            return BT_IO_FAILED;
        }
    }
    t->out_first = t->out_end = 0;
    return BT_IO_DONE;
}

static bt_io handshake(bt_transport *base, bt_error *err)
{
    tls *t = tls_of(base);

    pthread_mutex_lock(&t->lock);
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(t->ssl);
    bt_io io = result == 1 ? BT_IO_DONE : judge(t, result, errno, err);
    if ((io == BT_IO_END || (io == BT_IO_FAILED && err->status == BT_E_LOST)) && !t->answered &&
        !base->accepted) {
        io = hung_up(t, err);
    }
    if (io == BT_IO_FAILED && t->out_end == 0 && t->answered) {
        say_no(t);
    }
    /* Also the alert that tells the peer why not. */
    const bt_io flushed = flush(t, io == BT_IO_FAILED ? NULL : err);
    if (io == BT_IO_DONE || io == BT_IO_WANT_READ) {
        io = flushed != BT_IO_DONE ? flushed : io;
    }
    t->established = io == BT_IO_DONE;
    pthread_mutex_unlock(&t->lock);
    return io;
}

static bt_io receive(bt_transport *base, void *to, size_t room, size_t *ret_n, bt_error *err)
{
    tls *t = tls_of(base);
    bt_io io = BT_IO_DONE;
    size_t total = 0;

    pthread_mutex_lock(&t->lock);
    if (t->damage.status != BT_OK) {
        *err = t->damage;
        io = BT_IO_FAILED;
    }
    while (io == BT_IO_DONE && total < room) {
        size_t n = 0;
        ERR_clear_error();
        errno = 0;
        const int result = SSL_read_ex(t->ssl, (uint8_t *)to + total, room - total, &n);
        total += n;
        if (result != 1) {
            io = judge(t, result, errno, err);
            t->damage = io == BT_IO_FAILED ? *err : t->damage;
        }
    }
    (void)flush(t, NULL);               /* answers of TLS itself; the writer sends what is left */
    pthread_mutex_unlock(&t->lock);
    if (total == 0) {
        return io;
    }
    *ret_n = total;                     /* an end or a failure is told the next time */
    return BT_IO_DONE;
}

/* As many records as `out` takes. */
static bt_io encrypt(tls *t, const struct iovec *parts, int n_parts, bt_error *err)
{
    for (int i = 0; i < n_parts; i++) {
        for (size_t at = 0; at < parts[i].iov_len;) {
            const size_t left = parts[i].iov_len - at;
            size_t n = 0;
            if (OUT_BYTES - t->out_end < 2 * RECORD_ROOM) {
                return BT_IO_DONE;
            }
            if (t->since_rekey >= REKEY_BYTES) {
                SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
                t->since_rekey = 0;
            }
            ERR_clear_error();
            errno = 0;
            const int result = SSL_write_ex(t->ssl, (const uint8_t *)parts[i].iov_base + at,
                                            left < RECORD_BYTES ? left : RECORD_BYTES, &n);
            if (result != 1) {
                return judge(t, result, errno, err);
            }
            at += n;
            t->accepted += n;
            t->since_rekey += n;
        }
    }
    return BT_IO_DONE;
}

/* Bytes count as sent when their records are with the kernel; until then the caller comes again
 * with the same parts. */
static bt_io transmit(bt_transport *base, const struct iovec *parts, int n_parts, size_t *ret_n,
                      bt_error *err)
{
    tls *t = tls_of(base);

    pthread_mutex_lock(&t->lock);
    bt_io io = flush(t, err);
    if (t->damage.status != BT_OK) {    /* not what TLS says after it: that the peer has closed */
        *err = t->damage;
        io = BT_IO_FAILED;
    }
    if (io == BT_IO_DONE && t->accepted == 0) {
        io = encrypt(t, parts, n_parts, err);
        if (io == BT_IO_DONE || t->accepted > 0) {
            io = flush(t, err);
        }
    }
    if (io == BT_IO_DONE) {
        *ret_n = t->accepted;
        t->accepted = 0;
    }
    pthread_mutex_unlock(&t->lock);
    return io;
}

static void finish(bt_transport *base)
{
    tls *t = tls_of(base);

    pthread_mutex_lock(&t->lock);
    if (t->established) {
        ERR_clear_error();
        (void)SSL_shutdown(t->ssl);
        (void)flush(t, NULL);
    }
    pthread_mutex_unlock(&t->lock);
    shutdown(base->fd, SHUT_WR);
}

static void destroy(bt_transport *base)
{
    tls *t = tls_of(base);

    SSL_free(t->ssl);
    close(base->fd);
    pthread_mutex_destroy(&t->lock);
    bt_link_key_forget(&t->key);
    bt_free(t->out);
    bt_free(t);
}

static const bt_transport_ops ops = {
    .name = "tls",
    .encrypted = true,
    .handshake = handshake,
    .recv = receive,
    .send = transmit,
    .finish = finish,
    .destroy = destroy,
};

/* ---- life ---- */

static SSL_CTX *make_context(void)
{
    SSL_CTX *c = SSL_CTX_new(TLS_method());

    if (c == NULL || !SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(c, cipher_list) || !SSL_CTX_set_num_tickets(c, 0)) {
        SSL_CTX_free(c);
        return NULL;
    }
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    /* The key is all that counts: no chain is ever looked at, and the server has none to show. */
    SSL_CTX_set_verify(c, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, READ_AHEAD_BYTES);
    SSL_CTX_set_psk_use_session_callback(c, use_key);
    SSL_CTX_set_psk_find_session_callback(c, find_key);
    return c;
}

static bool prepare(tls *t)
{
    pthread_once(&wire_method_once, make_wire_method);
    SSL_CTX *c = make_context();
    BIO *bio = wire_method != NULL ? BIO_new(wire_method) : NULL;

    t->ssl = c != NULL ? SSL_new(c) : NULL;
    SSL_CTX_free(c);                    /* the SSL holds it */
    if (t->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    if (t->base.accepted) {
        SSL_set_accept_state(t->ssl);
    } else {
        SSL_set_connect_state(t->ssl);
    }
    return true;
}

bt_status bt_link_transport_tls_open(int fd, bool accepted, const char *peer,
                                     const bt_link_key *key, bt_transport **ret_transport,
                                     bt_error *err)
{
    tls *t = bt_alloc_zero(BT_MEM_link, 1, sizeof *t);

    if (t == NULL) {
        close(fd);
        return bt_fail(err, BT_E_NOMEM, "%s: no memory for a connection", peer);
    }
    t->base.ops = &ops;
    t->base.fd = fd;
    t->base.accepted = accepted;
    snprintf(t->base.peer, sizeof t->base.peer, "%s", peer);
    t->key = *key;
    pthread_mutex_init(&t->lock, NULL);
    t->out = bt_alloc(BT_MEM_link, OUT_BYTES);
    if (t->out == NULL || !prepare(t)) {
        destroy(&t->base);
        return bt_fail(err, BT_E_NOMEM, "%s: no memory for TLS", peer);
    }
    *ret_transport = &t->base;
    return BT_OK;
}
