/* cpu/isa.c - which ISAs may run here.
 *
 * An ISA counts only if the processor has all of its parts and the operating system saves the
 * registers it uses (XCR0: bits 1, 2 for AVX; 5, 6, 7 too for AVX-512).
 */
#include "cpu/isa.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static const char *const NAMES[BT_ISA_COUNT] = {
    [BT_ISA_REF] = "ref",
    [BT_ISA_AVX2] = "avx2",
    [BT_ISA_AVX512] = "avx512",
    [BT_ISA_AVX512VNNI] = "avx512vnni",
    [BT_ISA_NEON] = "neon",
    [BT_ISA_DOTPROD] = "dotprod",
    [BT_ISA_I8MM] = "i8mm",
};

enum {
    ECX1_FMA = 1 << 12, ECX1_OSXSAVE = 1 << 27, ECX1_AVX = 1 << 28, ECX1_F16C = 1 << 29,
    EBX7_AVX2 = 1 << 5, EBX7_AVX512F = 1 << 16, EBX7_AVX512DQ = 1 << 17, EBX7_AVX512BW = 1 << 30,
    ECX7_AVX512VNNI = 1 << 11,
    XCR0_AVX = 0x06, XCR0_AVX512 = 0xe6,
};
#define EBX7_AVX512VL (1u << 31)

static bool has(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

bt_isa bt_cpu_isa_of_cpuid(const bt_cpuid *record)
{
    if (record->leaf_max < 7
        || !has(record->leaf1_ecx, ECX1_FMA | ECX1_OSXSAVE | ECX1_AVX | ECX1_F16C)
        || !has(record->leaf7_ebx, EBX7_AVX2) || !has(record->xcr0, XCR0_AVX)) {
        return BT_ISA_REF;
    }
    if (!has(record->leaf7_ebx, EBX7_AVX512F | EBX7_AVX512DQ | EBX7_AVX512BW | EBX7_AVX512VL)
        || !has(record->xcr0, XCR0_AVX512)) {
        return BT_ISA_AVX2;
    }
    return has(record->leaf7_ecx, ECX7_AVX512VNNI) ? BT_ISA_AVX512VNNI : BT_ISA_AVX512;
}

#if defined(__x86_64__)
static bt_cpuid ask_machine(void)
{
    bt_cpuid record = { 0 };
    uint32_t eax, ebx, ecx, edx;

    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) {
        record.leaf_max = eax;
    }
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        record.leaf1_ecx = ecx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        record.leaf7_ebx = ebx;
        record.leaf7_ecx = ecx;
    }
    if (record.leaf1_ecx & ECX1_OSXSAVE) {
        uint32_t low, high;
        /* xgetbv of register 0, as an instruction: the intrinsic would need a target flag. */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        record.xcr0 = (uint64_t)high << 32 | low;
    }
    return record;
}
#endif

#if defined(__aarch64__) && defined(__APPLE__)
static bool apple_has(const char *feature)
{
    int    value = 0;
    size_t size = sizeof value;

    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

bt_isa bt_cpu_isa_detect(void)
{
#if defined(__x86_64__)
    const bt_cpuid record = ask_machine();
    return bt_cpu_isa_of_cpuid(&record);
#elif defined(__aarch64__) && defined(__linux__)
    enum { DOTPROD_BIT = 20, I8MM_BIT = 13 };     /* of AT_HWCAP and AT_HWCAP2 */
    if (!(getauxval(AT_HWCAP) >> DOTPROD_BIT & 1u)) {
        return BT_ISA_NEON;
    }
    return getauxval(AT_HWCAP2) >> I8MM_BIT & 1u ? BT_ISA_I8MM : BT_ISA_DOTPROD;
#elif defined(__aarch64__) && defined(__APPLE__)
    if (!apple_has("hw.optional.arm.FEAT_DotProd")) {
        return BT_ISA_NEON;
    }
    return apple_has("hw.optional.arm.FEAT_I8MM") ? BT_ISA_I8MM : BT_ISA_DOTPROD;
#elif defined(__aarch64__)
    return BT_ISA_NEON;
#else
    return BT_ISA_REF;
#endif
}

bool bt_cpu_isa_supported(bt_isa isa)
{
    const bt_isa best = bt_cpu_isa_detect();

    if (isa == BT_ISA_REF || isa == best) {
        return true;
    }
    /* ISAs of one architecture are in order; those of the other lie outside of the range. */
    return best >= BT_ISA_NEON ? isa >= BT_ISA_NEON && isa < best
                               : isa > BT_ISA_REF && isa < best;
}

const char *bt_cpu_isa_name(bt_isa isa)
{
    return (unsigned)isa < BT_ISA_COUNT ? NAMES[isa] : "unknown";
}

bool bt_cpu_isa_parse(const char *name, bt_isa *ret_isa)
{
    for (int isa = 0; name && isa < BT_ISA_COUNT; isa++) {
        if (strcmp(name, NAMES[isa]) == 0) {
            *ret_isa = (bt_isa)isa;
            return true;
        }
    }
    return false;
}
