/*
 * Which level of x86-64 a program's code is for: 1 to 4, as
 * https://gitlab.com/x86-psABIs/x86-64-ABI names them.
 *
 * Instructions are told apart by their lengths: Intel 64 and IA-32 Architectures Software
 * Developer's Manual, volume 2, chapter 2 and appendix A. AVX and its kin (VEX) belong to level 3,
 * AVX-512 (EVEX) to level 4.
 */
enum { FEW = 3 }; /* so many may be data between instructions */

struct code {
    long vex, evex, cpuid; /* how many there are of them */
};

struct instruction {
    const unsigned char *next, *end;
    int map, opcode, wide, small; /* map 1 is 0F, 2 0F38, 3 0F3A; REX.W, and the prefix 66 */
};

static int has_modrm(const struct instruction *i)
{
    const int op = i->opcode;
    if (i->map >= 2)
        return 1;
    if (i->map == 1)
        return !((op >= 0x05 && op <= 0x0C) || op == 0x0E || (op >= 0x30 && op <= 0x37) ||
                 op == 0x77 || (op >= 0x80 && op <= 0x8F) || (op >= 0xA0 && op <= 0xA2) ||
                 (op >= 0xA8 && op <= 0xAA) || (op >= 0xC8 && op <= 0xCF));
    if (op < 0x40)
        return op % 8 < 4;
    return op == 0x63 || op == 0x69 || op == 0x6B || (op >= 0x80 && op <= 0x8F) || op == 0xC0 ||
           op == 0xC1 || op == 0xC6 || op == 0xC7 || (op >= 0xD0 && op <= 0xD3) ||
           (op >= 0xD8 && op <= 0xDF) || op == 0xF6 || op == 0xF7 || op >= 0xFE;
}

/* Bytes of what follows the operand in the opcodes without a map; `reg` is a part of it. */
static int immediate_of_one(const struct instruction *i, int reg)
{
    const int op = i->opcode, word = i->small ? 2 : 4;
    if (op < 0x40)
        return op % 8 == 4 ? 1 : op % 8 == 5 ? word : 0;
    if (op == 0x68 || op == 0x69 || op == 0x81 || op == 0xA9 || op == 0xC7 || op == 0xE8 ||
        op == 0xE9)
        return op >= 0xE8 ? 4 : word;
    if (op >= 0xB8 && op <= 0xBF)
        return i->wide ? 8 : word;
    if (op >= 0xA0 && op <= 0xA3)
        return 8;
    if (op == 0xC2 || op == 0xCA)
        return 2;
    if (op == 0xC8)
        return 3;
    if (op == 0xF6 || op == 0xF7)
        return reg > 1 ? 0 : op == 0xF6 ? 1 : word;
    return op == 0x6A || op == 0x6B || (op >= 0x70 && op <= 0x80) || op == 0x82 || op == 0x83 ||
           op == 0xA8 || (op >= 0xB0 && op <= 0xB7) || op == 0xC0 || op == 0xC1 || op == 0xC6 ||
           op == 0xCD || (op >= 0xE0 && op <= 0xE7) || op == 0xEB;
}

static int immediate(const struct instruction *i, int reg)
{
    const int op = i->opcode;
    if (i->map == 0)
        return immediate_of_one(i, reg);
    if (i->map == 1)
        return op >= 0x80 && op <= 0x8F ? 4
                                        : op == 0x0F || (op >= 0x70 && op <= 0x73) || op == 0xA4 ||
                                              op == 0xAC || op == 0xBA || op == 0xC2 ||
                                              (op >= 0xC4 && op <= 0xC6);
    return i->map == 3;
}

/* Passes over the operand and what follows it. */
static void pass_operands(struct instruction *i)
{
    int reg = 0;
    if (has_modrm(i) && i->next < i->end) {
        const int modrm = *i->next++, mod = modrm >> 6, rm = modrm & 7;
        const int sib = mod != 3 && rm == 4 && i->next < i->end ? *i->next : 0;
        reg = modrm >> 3 & 7;
        i->next += mod != 3 && rm == 4;
        i->next += mod == 1 ? 1
                   : mod == 2 || (mod == 0 && (rm == 5 || (rm == 4 && (sib & 7) == 5))) ? 4
                                                                                        : 0;
    }
    i->next += immediate(i, reg);
}

static int is_prefix(int byte)
{
    return byte == 0x66 || byte == 0xF2 || byte == 0xF3 || byte == 0x2E || byte == 0x36 ||
           byte == 0x3E || byte == 0x26 || byte == 0x64 || byte == 0x65 || byte == 0x67 ||
           byte == 0xF0;
}

/* After the prefix of AVX or AVX-512, whose parts give the map. */
static void read_vector(struct instruction *i, struct code *code, int first)
{
    const unsigned char *p = i->next;
    if (first == 0xC5) {
        i->map = 1;
        i->opcode = p[1];
        i->next = p + 2;
    } else if (first == 0xC4) {
        i->map = p[0] & 31;
        i->opcode = p[2];
        i->next = p + 3;
    } else {
        i->map = p[0] & 7;
        i->opcode = p[3];
        i->next = p + 4;
    }
    if (first == 0x62)
        code->evex += (p[0] & 8) == 0 && (p[1] & 4) != 0 && i->map != 0;
    else
        code->vex += i->map >= 1 && i->map <= 3;
    if (i->map > 3) /* 5 and 6 are for half precision */
        i->map = i->map == 5 ? 1 : 2;
}

static const unsigned char *pass_instruction(const unsigned char *p, const unsigned char *end,
                                             struct code *code)
{
    struct instruction i = {p, end, 0, 0, 0, 0};
    int byte;
    while (i.next < end && is_prefix(*i.next))
        i.small |= *i.next++ == 0x66;
    if (i.next < end && (*i.next & 0xF0) == 0x40)
        i.wide = (*i.next++ & 8) != 0;
    if (end - i.next < 6)
        return end;
    byte = *i.next++;
    if (byte == 0x62 || byte == 0xC4 || byte == 0xC5) {
        read_vector(&i, code, byte);
    } else if (byte == 0x0F) {
        i.map = *i.next == 0x38 ? 2 : *i.next == 0x3A ? 3 : 1;
        i.next += i.map > 1;
        i.opcode = *i.next++;
        code->cpuid += i.map == 1 && i.opcode == 0xA2;
    } else {
        i.opcode = byte;
    }
    pass_operands(&i);
    return i.next;
}

static void count_code(const struct object *o, struct code *code)
{
    const uint64_t table = at(o->data + 40, 8);
    const int n = (int)at(o->data + 60, 2), width = (int)at(o->data + 58, 2);
    for (int s = 0; s < n && table != 0 && width >= 64; s++) {
        const unsigned char *section = o->data + table + (size_t)s * (size_t)width, *p, *end;
        const uint64_t flags = at(section + 8, 8), offset = at(section + 24, 8),
                       length = at(section + 32, 8);
        if (!(flags & 4) || at(section + 4, 4) != 1 || offset > o->size || o->size - offset < length)
            continue;
        p = o->data + offset;
        end = p + length;
        while (p < end)
            p = pass_instruction(p, end, code);
    }
}

/* Whether a program may choose its code by the processor that it finds. */
static int asks_processor(const struct object *o, const struct code *code)
{
    static const char *const NAMES[] = {"__cpu_model", "__cpu_indicator_init", "getauxval",
                                        "__get_cpu_features", "__x86_get_cpuid_feature_leaf"};
    enum { IFUNC = 10 };
    if (code->cpuid > 0)
        return 1;
    for (uint32_t i = 0; i < o->n_symbols; i++) {
        if ((symbol(o, i)[4] & 15) == IFUNC)
            return 1;
        for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
            if (strcmp(symbol_name(o, i), NAMES[n]) == 0)
                return 1;
    }
    return 0;
}

/* The level that a program's code is for without asking. */
static int level_of_code(const struct object *o)
{
    struct code code = {0, 0, 0};
    count_code(o, &code);
    if ((code.vex < FEW && code.evex < FEW) || asks_processor(o, &code))
        return 1;
    return code.evex >= FEW ? 4 : 3;
}

/* The level that a file demands of the loader, which then refuses older processors. */
static int level_of_note(const struct object *o)
{
    enum { ALIGNED = 8, GNU_PROPERTY = 5 };
    static const uint64_t ISA_NEEDED = 0xc0008002;
    for (int h = 0; h < n_headers(o); h++) {
        const unsigned char *note = o->data + at(header_of(o, h) + 8, 8);
        const unsigned char *end = note + at(header_of(o, h) + 32, 8);
        if (at(header_of(o, h), 4) != PT_NOTE_)
            continue;
        while (end - note >= 16) {
            const size_t length = at(note + 4, 4);
            const unsigned char *property = note + 16;
            if (at(note, 4) != 4 || at(note + 8, 4) != GNU_PROPERTY || memcmp(note + 12, "GNU", 4) ||
                length > (size_t)(end - property))
                break;
            while ((size_t)(property - note) + 8 <= 16 + length) {
                const size_t size = (at(property + 4, 4) + 7) / ALIGNED * ALIGNED;
                if (at(property, 4) == ISA_NEEDED && size >= 4) {
                    const uint64_t bits = at(property + 8, 4);
                    return bits & 8 ? 4 : bits & 4 ? 3 : bits & 2 ? 2 : 1;
                }
                property += 8 + size;
            }
            note += 16 + (length + 7) / ALIGNED * ALIGNED;
        }
    }
    return 1;
}
