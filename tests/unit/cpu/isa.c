/* ISAs from recorded machines, names, and matrices made for an ISA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "cpu/isa.h"

enum {
    FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29,               /* 1, ECX */
    AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30,      /* 7, EBX */
    VNNI = 1 << 11,                                                                /* 7, ECX */
};
#define AVX512VL (1u << 31)
#define ECX1_ALL (FMA | OSXSAVE | AVX | F16C)
#define EBX7_ALL (AVX2 | AVX512F | AVX512DQ | AVX512BW | AVX512VL)

/* Highest leaf; leaf 1 ECX; leaf 7 EBX and ECX; XCR0. The first is a whole record, the others have
 * the bits that matter of what such processors have. */
static const struct {
    const char *machine;
    bt_cpuid    record;
    bt_isa      want;
} RECORDS[] = {
    { "Xeon, family 6, model 207, in a virtual machine",
      { 28, 0xfffa3203, 0xf1bf2ffb, 0x1a415f46, 0x0000000e7 }, BT_ISA_AVX512VNNI },
    { "before AVX", { 11, 0, 0, 0, 0 }, BT_ISA_REF },
    { "AVX alone", { 13, OSXSAVE | AVX, 0, 0, 0x7 }, BT_ISA_REF },
    { "AVX2", { 13, ECX1_ALL, AVX2, 0, 0x7 }, BT_ISA_AVX2 },
    { "AVX-512 of servers", { 22, ECX1_ALL, EBX7_ALL, 0, 0xe7 }, BT_ISA_AVX512 },
    { "and VNNI", { 22, ECX1_ALL, EBX7_ALL, VNNI, 0xe7 }, BT_ISA_AVX512VNNI },
    { "and AMX state", { 32, ECX1_ALL, EBX7_ALL, VNNI, 0x600e7 }, BT_ISA_AVX512VNNI },
    { "no AVX-512 state", { 32, ECX1_ALL, EBX7_ALL, VNNI, 0x7 }, BT_ISA_AVX2 },
    { "only part of AVX-512 state", { 32, ECX1_ALL, EBX7_ALL, VNNI, 0x67 }, BT_ISA_AVX2 },
    { "no AVX state", { 32, ECX1_ALL, EBX7_ALL, VNNI, 0x3 }, BT_ISA_REF },
    { "no OSXSAVE", { 32, ECX1_ALL & ~OSXSAVE, EBX7_ALL, VNNI, 0 }, BT_ISA_REF },
    { "no FMA", { 32, ECX1_ALL & ~FMA, EBX7_ALL, VNNI, 0xe7 }, BT_ISA_REF },
    { "no F16C", { 32, ECX1_ALL & ~F16C, EBX7_ALL, VNNI, 0xe7 }, BT_ISA_REF },
    { "no AVX2", { 32, ECX1_ALL, EBX7_ALL & ~(unsigned)AVX2, VNNI, 0xe7 }, BT_ISA_REF },
    { "no BW", { 22, ECX1_ALL, EBX7_ALL & ~(unsigned)AVX512BW, VNNI, 0xe7 }, BT_ISA_AVX2 },
    { "no VL", { 22, ECX1_ALL, EBX7_ALL & ~AVX512VL, VNNI, 0xe7 }, BT_ISA_AVX2 },
    { "no leaf 7", { 6, ECX1_ALL, EBX7_ALL, VNNI, 0xe7 }, BT_ISA_REF },
};

static void recorded_machines_get_their_tier(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_LEN(RECORDS); i++) {
        const bt_isa got = bt_cpu_isa_of_cpuid(&RECORDS[i].record);
        if (got != RECORDS[i].want) {
            fail_msg("%s: %s", RECORDS[i].machine, bt_cpu_isa_name(got));
        }
    }
}

static void this_machine_has_its_tier_and_all_below(void **state)
{
    (void)state;
    const bt_isa best = bt_cpu_isa_detect();
    assert_true(bt_cpu_isa_supported(best));
    assert_true(bt_cpu_isa_supported(BT_ISA_REF));
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        const bt_cpu_kernels *k = bt_cpu_kernels_get((bt_isa)isa);
        assert_int_equal(k != NULL, bt_cpu_isa_supported((bt_isa)isa));
        if (k) {
            assert_int_equal(k->isa, isa);
            assert_ptr_equal(k, bt_cpu_kernels_get((bt_isa)isa));
        }
    }
    assert_null(bt_cpu_kernels_get(BT_ISA_COUNT));
    assert_null(bt_cpu_kernels_get((bt_isa)-1));
    const bt_isa other = best >= BT_ISA_NEON ? BT_ISA_AVX2 : BT_ISA_NEON;
    assert_null(bt_cpu_kernels_get(other));
}

static void names_are_parsed(void **state)
{
    (void)state;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        bt_isa parsed = BT_ISA_COUNT;
        assert_true(bt_cpu_isa_parse(bt_cpu_isa_name((bt_isa)isa), &parsed));
        assert_int_equal(parsed, isa);
    }
    bt_isa untouched = BT_ISA_AVX512;
    assert_false(bt_cpu_isa_parse("sse9", &untouched));
    assert_false(bt_cpu_isa_parse(NULL, &untouched));
    assert_int_equal(untouched, BT_ISA_AVX512);
    assert_string_equal(bt_cpu_isa_name((bt_isa)99), "unknown");
}

static void matrices_are_made_and_given_back(void **state)
{
    (void)state;
    const bt_cpu_kernels *k = bt_cpu_kernels_get(bt_cpu_isa_detect());
    uint8_t       rows[3 * 18 * 2] = { 0 };
    bt_cpu_matrix m;
    bt_error      err;
    assert_int_equal(bt_cpu_matrix_init(&m, k, BT_TYPE_Q4_0, 3, 64, rows, true, &err), BT_OK);
    assert_int_equal(m.n_in, 64);
    assert_int_equal(m.n_out, 3);
    assert_int_equal(m.owned, k->pack_bytes(BT_TYPE_Q4_0, 3, 64) != 0);
    bt_cpu_matrix_done(&m);
    assert_null(m.data);
    assert_int_equal(bt_cpu_matrix_init(&m, k, BT_TYPE_Q4_0, 3, 64, rows, false, &err), BT_OK);
    assert_false(m.owned);
    assert_ptr_equal(m.data, rows);
    assert_int_equal(m.size_bytes, sizeof rows);
    bt_cpu_matrix_done(&m);
}

static void what_cannot_be_read_is_refused_by_name(void **state)
{
    (void)state;
    const bt_cpu_kernels *k = bt_cpu_kernels_get(BT_ISA_REF);
    const uint8_t rows[64] = { 0 };
    bt_cpu_matrix m = { .n_in = 77 };
    bt_error      err;
    assert_int_equal(bt_cpu_matrix_init(&m, k, (bt_type)19, 1, 256, rows, true, &err),
                     BT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "IQ1_S"));
    assert_int_equal(bt_cpu_matrix_init(&m, k, (bt_type)50, 1, 256, rows, true, &err),
                     BT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "50"));
    assert_int_equal(bt_cpu_matrix_init(&m, k, BT_TYPE_Q4_0, 1, 40, rows, true, &err),
                     BT_E_BADFILE);
    assert_non_null(strstr(err.text, "Q4_0"));
    assert_int_equal(bt_cpu_matrix_init(&m, k, BT_TYPE_F32, 0, 40, rows, true, &err), BT_E_BADFILE);
    assert_int_equal(m.n_in, 77);
}

static void no_memory_is_reported(void **state)
{
    (void)state;
    const bt_cpu_kernels *k = bt_cpu_kernels_get(bt_cpu_isa_detect());
    const uint8_t rows[18] = { 0 };
    bt_cpu_matrix m;
    bt_error      err;
    if (k->pack_bytes(BT_TYPE_Q4_0, 1, 32) == 0) {
        skip();
    }
    bt_memory_fail_after(1);
    assert_int_equal(bt_cpu_matrix_init(&m, k, BT_TYPE_Q4_0, 1, 32, rows, true, &err), BT_E_NOMEM);
    bt_memory_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_made_and_given_back),
        cmocka_unit_test(recorded_machines_get_their_tier),
        cmocka_unit_test(this_machine_has_its_tier_and_all_below),
        cmocka_unit_test(names_are_parsed),
        cmocka_unit_test(what_cannot_be_read_is_refused_by_name),
        cmocka_unit_test(no_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
