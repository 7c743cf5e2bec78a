/* A keyed fingerprint of up to 256 KiB, as quick as memory: whether bytes are still what they were.
 *
 * fingerprint(bytes, key) -> 16 bytes
 * fingerprints(fd, first, count, key) -> 16 bytes for each of `count` pieces of 256 KiB of a file,
 * from number `first` on
 *
 * NH as in UMAC (RFC 4418), two passes with a shifted key, over blocks of 4 KiB; then the same over
 * what came of the blocks. With a random key two given contents of one length agree with a chance
 * of at most 2^-63, however they were chosen, as long as nobody sees key or fingerprints. It names
 * nothing in the store: what differs is hashed there. The last block is filled up with zeros.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define FORM 2 /* as compiled.py has it */
#define BLOCK 1024 /* words of 4 bytes */
#define MOST 64 /* blocks */
#define SHIFT 4 /* words between the keys of the two passes */
#define PER_BLOCK 4 /* words that come of a block */
#define PIECE ((size_t)MOST * BLOCK * 4)
#define AT_ONCE 16 /* pieces that are mapped together */
#define KEY (BLOCK + SHIFT + MOST * PER_BLOCK + SHIFT)

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif

typedef uint32_t Word __attribute__((aligned(1), may_alias));

static void nh_plain(const Word *words, size_t count, const uint32_t *key, uint64_t out[2]) {
    uint64_t one = 0, two = 0;
    for (size_t n = 0; n < count; n += 2) {
        one += (uint64_t)(uint32_t)(words[n] + key[n]) * (uint32_t)(words[n + 1] + key[n + 1]);
        two += (uint64_t)(uint32_t)(words[n] + key[n + SHIFT]) *
               (uint32_t)(words[n + 1] + key[n + 1 + SHIFT]);
    }
    out[0] = one;
    out[1] = two;
}

#if HAS_AVX2
/* The same: a pair of words is one lane of 64 bits. */
__attribute__((target("avx2"))) static void nh_avx2(const Word *words, size_t count,
                                                    const uint32_t *key, uint64_t out[2]) {
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t n = 0; n < count; n += 8) {
        __m256i eight = _mm256_loadu_si256((const __m256i *)(words + n));
        for (int pass = 0; pass < 2; pass++) {
            const __m256i *keys = (const __m256i *)(key + n + pass * SHIFT);
            __m256i added = _mm256_add_epi32(eight, _mm256_loadu_si256(keys));
            __m256i product = _mm256_mul_epu32(added, _mm256_srli_epi64(added, 32));
            sums[pass] = _mm256_add_epi64(sums[pass], product);
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        uint64_t lanes[4];
        _mm256_storeu_si256((__m256i *)lanes, sums[pass]);
        out[pass] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    }
}
#endif

static void nh(const Word *words, size_t count, const uint32_t *key, uint64_t out[2]) {
#if HAS_AVX2
    if (count % 8 == 0 && __builtin_cpu_supports("avx2")) {
        nh_avx2(words, count, key, out);
        return;
    }
#endif
    nh_plain(words, count, key, out);
}

static void fingerprint_of(const char *data, size_t size, const uint32_t *key, uint64_t out[2]) {
    uint64_t blocks[MOST][2];
    size_t count = 0, block = BLOCK * sizeof(Word);
    for (; size; count++) {
        char last[BLOCK * sizeof(Word)];
        const char *from = data;
        size_t length = size < block ? size : block;
        if (length < block) {
            memset(last, 0, block);
            from = memcpy(last, data, length);
        }
        nh((const Word *)from, BLOCK, key, blocks[count]);
        data += length;
        size -= length;
    }
    nh((const Word *)blocks, count * PER_BLOCK, key + BLOCK + SHIFT, out);
}

/* A mapped page that cannot be read (the file became shorter, the disk failed) is a signal, where a
 * read would give an error. In a thread that is mapping it ends the mapping, else it is as before. */
static __thread sigjmp_buf *way_out;
static struct sigaction before;

static void on_bus_error(int number) {
    if (way_out) siglongjmp(*way_out, 1);
    sigaction(number, &before, NULL);
}

static void catch_bus_errors(void) {
    struct sigaction ours = {.sa_handler = on_bus_error};
    sigaction(SIGBUS, &ours, &before);
}

static int of_mapped(const char *data, size_t pieces, const uint32_t *key, uint64_t (*out)[2]) {
    sigjmp_buf here;
    if (sigsetjmp(here, 1)) {
        way_out = NULL;
        return EIO;
    }
    way_out = &here;
    for (size_t n = 0; n < pieces; n++) fingerprint_of(data + n * PIECE, PIECE, key, out[n]);
    way_out = NULL;
    return 0;
}

static int of_file(int fd, size_t first, size_t count, const uint32_t *key, uint64_t (*out)[2]) {
    int error = 0;
    for (size_t done = 0; done < count && !error; done += AT_ONCE) {
        size_t pieces = count - done < AT_ONCE ? count - done : AT_ONCE;
        off_t start = (off_t)((first + done) * PIECE);
        char *data = mmap(NULL, pieces * PIECE, PROT_READ, MAP_SHARED, fd, start);
        if (data == MAP_FAILED) return errno;
        madvise(data, pieces * PIECE, MADV_SEQUENTIAL);
        error = of_mapped(data, pieces, key, out + done);
        munmap(data, pieces * PIECE);
    }
    return error;
}

static int is_key(const Py_buffer *key) {
    if (key->len == KEY * sizeof(uint32_t)) return 1;
    PyErr_SetString(PyExc_ValueError, "a key of another length");
    return 0;
}

static PyObject *fingerprint(PyObject *self, PyObject *arguments) {
    Py_buffer data, random;
    uint32_t key[KEY];
    uint64_t out[2];
    PyObject *made = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*", &data, &random)) return NULL;
    if ((size_t)data.len > PIECE) PyErr_SetString(PyExc_ValueError, "too many bytes");
    else if (is_key(&random)) {
        memcpy(key, random.buf, sizeof key);
        Py_BEGIN_ALLOW_THREADS
        fingerprint_of(data.buf, (size_t)data.len, key, out);
        Py_END_ALLOW_THREADS
        made = PyBytes_FromStringAndSize((const char *)out, sizeof out);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&random);
    return made;
}

static PyObject *fingerprints(PyObject *self, PyObject *arguments) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    Py_buffer random;
    uint32_t key[KEY];
    Py_ssize_t first, count;
    int fd, error;
    PyObject *made = NULL;
    if (!PyArg_ParseTuple(arguments, "inny*", &fd, &first, &count, &random)) return NULL;
    if (first < 0 || count < 0) PyErr_SetString(PyExc_ValueError, "below nothing");
    else if (is_key(&random) && (made = PyBytes_FromStringAndSize(NULL, count * 16))) {
        memcpy(key, random.buf, sizeof key);
        pthread_once(&once, catch_bus_errors);
        void *out = PyBytes_AS_STRING(made);
        Py_BEGIN_ALLOW_THREADS
        error = of_file(fd, (size_t)first, (size_t)count, key, out);
        Py_END_ALLOW_THREADS
        if (error) {
            Py_CLEAR(made);
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    PyBuffer_Release(&random);
    return made;
}

static PyMethodDef methods[] = {
    {"fingerprint", fingerprint, METH_VARARGS, "fingerprint(bytes, key): 16 bytes"},
    {"fingerprints", fingerprints, METH_VARARGS, "fingerprints(fd, first, count, key)"},
    {NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_fingerprint", "Whether bytes are still what they were.", -1, methods};

PyMODINIT_FUNC PyInit__fingerprint(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "FORM", FORM)) Py_CLEAR(made);
    if (made && PyModule_AddIntConstant(made, "KEY", KEY * sizeof(uint32_t))) Py_CLEAR(made);
    return made;
}
