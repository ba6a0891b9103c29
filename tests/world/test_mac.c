/* test_mac.c: SHA-256 and HMAC against the vectors of FIPS 180-4 and RFC 4231, and every length
 * around a block against a hash of its pieces.
 */
#include "exec/base/mac.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect(const unsigned char mac[TSR_MAC_BYTES], const char *want)
{
    char text[2 * TSR_MAC_BYTES + 1];
    for (int i = 0; i < TSR_MAC_BYTES; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, want);
}

static void test_sha256__published_messages__published_digests(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "mnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"}};
    unsigned char mac[TSR_MAC_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t cut = 0; cut <= strlen(cases[i][0]); cut++) {
            tsr__sha256(cases[i][0], cut, cases[i][0] + cut, strlen(cases[i][0]) - cut, mac);
            expect(mac, cases[i][1]);
        }
    static char as[1000000];
    memset(as, 'a', sizeof as);
    tsr__sha256(as, 1, as, sizeof as - 1, mac);
    expect(mac, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_hmac__rfc_4231__published_codes(void **state)
{
    (void)state;
    unsigned char key[131], data[50], mac[TSR_MAC_BYTES];
    memset(key, 0x0b, 20);
    tsr__hmac(key, 20, "Hi ", 3, "There", 5, mac);
    expect(mac, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    tsr__hmac("Jefe", 4, "what do ya want ", 16, "for nothing?", 12, mac);
    expect(mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    tsr__hmac(key, 20, data, sizeof data, NULL, 0, mac);
    expect(mac, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    tsr__hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54, NULL,
              0, mac);
    expect(mac, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_same_bytes__one_bit_differs__seen(void **state)
{
    (void)state;
    unsigned char a[TSR_MAC_BYTES], b[TSR_MAC_BYTES];
    assert_true(tsr__random_bytes(a, sizeof a));
    memcpy(b, a, sizeof a);
    assert_true(tsr__same_bytes(a, b, sizeof a));
    for (unsigned bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(tsr__same_bytes(a, b, sizeof a));
        b[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_true(tsr__random_bytes(b, sizeof b));
    assert_false(tsr__same_bytes(a, b, sizeof a)); /* once in 2^256 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256__published_messages__published_digests),
        cmocka_unit_test(test_hmac__rfc_4231__published_codes),
        cmocka_unit_test(test_same_bytes__one_bit_differs__seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
