/* baton VERB [options] - the table of verbs is the manual. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "gguf/gguf.h"

static const bt_verb *const verbs[] = {
    &bt_verb_serve, &bt_verb_worker,   &bt_verb_run,
    &bt_verb_doctor, &bt_verb_inspect, &bt_verb_tokenize, &bt_verb_logits,
    &bt_verb_bench,
};

static void print_usage(FILE *to)
{
    fputs("baton - LLM inference with prefill and decode on different machines\n\n"
          "usage: baton VERB [options]      (baton VERB --help explains one verb)\n\n", to);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        fprintf(to, "  %-10s %s\n", verbs[i]->name, verbs[i]->summary);
    }
    fputs("\n  --version  the version of this program\n", to);
}

/* Else the first files and sockets that are opened would be standard input, output and error. */
static bool open_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!open_standard_descriptors()) {
        return 1;                      /* nowhere to say so */
    }
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("baton " BATON_VERSION);
        return 0;
    }
    bt_gguf_guard_start();
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(argv[1], verbs[i]->name) == 0) {
            return bt_verb_main(verbs[i], argc - 2, argv + 2);
        }
    }
    fprintf(stderr, "error: '%s' is not a verb of baton\n\n", argv[1]);
    print_usage(stderr);
    return 2;
}
