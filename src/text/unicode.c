/* UTF-8, strictly as Unicode's table 3-7 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#include "text/unicode_impl.h"

/* Length of the sequence that `lead` begins, and the range that the second byte must lie in; 0 for no lead byte. */
static int lead_length(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

int utf8_next(const char *p, size_t n, uint32_t *cp)
{
    const uint8_t *b = (const uint8_t *)p;
    if (b[0] < 0x80) {
        *cp = b[0];
        return 1;
    }
    uint8_t low, high;
    int length = lead_length(b[0], &low, &high);
    if (length == 0) return -1;
    uint32_t value = b[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n) return 0;
        if (b[i] < low || b[i] > high) return -i;
        value = value << 6 | (b[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *cp = value;
    return length;
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int length = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(cp | (0xF00u >> length & 0xFFu));
    return length;
}

void buf_codepoint(Buf *b, uint32_t cp)
{
    char bytes[4];
    buf_append(b, bytes, (size_t)utf8_encode(cp, bytes));
}

/* First byte at or after `at` that is not ASCII. Eight at a time: most text is. */
static size_t skip_ascii(const char *text, size_t at, size_t n)
{
    uint64_t word;
    for (; at + sizeof word <= n; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        if (word & 0x8080808080808080u) break;
    }
    while (at < n && (uint8_t)text[at] < 0x80) at++;
    return at;
}

size_t ascii_bytes(const char *text, size_t n)
{
    return skip_ascii(text, 0, n);
}

size_t utf8_valid_bytes(const char *text, size_t n)
{
    uint32_t cp;
    for (size_t at = skip_ascii(text, 0, n); at < n; at = skip_ascii(text, at, n)) {
        int length = utf8_next(text + at, n - at, &cp);
        if (length <= 0) return at;
        at += (size_t)length;
    }
    return n;
}

uint32_t utf8_read(const char **p)
{
    const uint8_t *b = (const uint8_t *)*p;
    int length = b[0] < 0x80 ? 1 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    uint32_t value = length == 1 ? b[0] : b[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) value = value << 6 | (b[i] & 0x3Fu);
    *p += length;
    return value;
}

size_t utf8_count(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)text[i] & 0xC0) != 0x80;
    return count;
}

bool char_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool nfc_is_obvious(const char *text, size_t n)
{
    /* Blocks in which every character is NFC by itself, has combining class 0 and is never the second half of a
     * composition; a test walks all of them. Together: most of what people write outside Greek, Arabic and India. */
    static const struct {
        uint32_t first, last;
    } inert[] = { { 0x0000, 0x02FF }, { 0x0400, 0x0482 }, { 0x1E00, 0x1EFF }, { 0x2002, 0x20CF },
                  { 0x2190, 0x2328 }, { 0x2500, 0x2ADB }, { 0x3000, 0x3029 }, { 0x3030, 0x3098 },
                  { 0x309B, 0x9FFF }, { 0xAC00, 0xD7A3 }, { 0xFE00, 0xFE0F }, { 0xFF00, 0xFFEF },
                  { 0x1F000, 0x1FAFF } };
    const char *end = text + n;
    while ((text += skip_ascii(text, 0, (size_t)(end - text))) < end) {
        uint32_t cp = utf8_read(&text);
        int i = 0;
        while (i < COUNT(inert) && cp > inert[i].last) i++;
        if (i == COUNT(inert) || cp < inert[i].first) return false;
    }
    return true;
}
