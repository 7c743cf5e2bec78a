/* Copies regular files of one directory into another, without Python's lock.
 *
 * copy_files(source_fd, target_fd, names, reflink, buffer, large, keep) -> (list, reflink)
 *
 * For each name, in order: ((inode, size, mtime_ns, ctime_ns, mode), count | None, has) of the copy,
 * or an errno. If it `has` extended attributes, they are the caller's to copy. What was read and
 * written lies in the buffer, `count` bytes of each file behind those of the one before if `keep` is 1; if it is 2, which only works where KNOWS_SHA, there is the SHA-1 that
 * git would give it instead of the count. None: blocks are shared and nothing was read. -1: of `large` bytes or more,
 * -2: no regular file; both are left alone. The list ends early where the buffer might not do for
 * another file. `reflink` comes back false if the disk cannot.
 *
 * `filecopy.py` has the same in Python; tests feed both the same trees.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/xattr.h>
#endif
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_SHA 1
#else
#define HAS_SHA 0
#endif

#define CLONE 0x40049409 /* FICLONE, as linux/fs.h has it */
#define FORM 2 /* as compiled.py has it */
#define STAMP 5
#define IS_LARGE -1
#define IS_OTHER -2
#define CANNOT -3
#define NOTHING 0
#define BYTES 1
#define DIGEST 2
#define SHA1_SIZE 20

typedef struct {
    const char *name;
    int error, read, has;
    uint64_t stamp[STAMP];
    size_t size;
    unsigned char digest[SHA1_SIZE];
} File;

typedef struct {
    int source, target, reflink, keep;
    size_t large;
    char *at; /* where in the buffer the next file goes */
} Job;

#if HAS_SHA
static int knows_sha(void) {
    unsigned a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

/* SHA-1 by the processor's own instructions, four rounds at a time. */
__attribute__((target("sha,sse4.1"))) static void sha1_blocks(uint32_t *state,
                                                              const unsigned char *data,
                                                              size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1b);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count; count--, data += 64) {
        __m128i m[4], began = abcd, began_e = e, before;
        for (int n = 0; n < 4; n++)
            m[n] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * n)), swap);
        e = _mm_add_epi32(e, m[0]);
        before = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e, 0);
#define ROUNDS(from, to, kind)                                                             \
    _Pragma("GCC unroll 5") for (int k = from; k < to; k++) {                              \
        if (k > 3)                                                                         \
            m[k & 3] = _mm_sha1msg2_epu32(                                                 \
                _mm_xor_si128(_mm_sha1msg1_epu32(m[k & 3], m[(k + 1) & 3]), m[(k + 2) & 3]), \
                m[(k + 3) & 3]);                                                           \
        e = _mm_sha1nexte_epu32(before, m[k & 3]);                                         \
        before = abcd;                                                                     \
        abcd = _mm_sha1rnds4_epu32(abcd, e, kind);                                         \
    }
        ROUNDS(1, 5, 0)
        ROUNDS(5, 10, 1)
        ROUNDS(10, 15, 2)
        ROUNDS(15, 20, 3)
        e = _mm_sha1nexte_epu32(before, began_e);
        abcd = _mm_add_epi32(abcd, began);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1b));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

/* The name git gives a blob. */
static void blob_name(const char *content, size_t size, unsigned char *digest) {
    uint32_t state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const unsigned char *data = (const unsigned char *)content;
    unsigned char block[128];
    size_t used = (size_t)sprintf((char *)block, "blob %zu", size) + 1, bits = 8 * (used + size);
    size_t first = size < 64 - used ? size : 64 - used;
    memcpy(block + used, data, first);
    used += first;
    if (used == 64) {
        size_t rest = size - first;
        sha1_blocks(state, block, 1);
        sha1_blocks(state, data + first, rest / 64);
        used = rest % 64;
        memcpy(block, data + first + rest - used, used);
    }
    block[used++] = 0x80;
    size_t end = used > 56 ? 128 : 64;
    memset(block + used, 0, end - used);
    for (int n = 0; n < 8; n++) block[end - 1 - n] = (unsigned char)(bits >> 8 * n);
    sha1_blocks(state, block, end / 64);
    for (int n = 0; n < SHA1_SIZE; n++)
        digest[n] = (unsigned char)(state[n / 4] >> (24 - 8 * (n % 4)));
}
#else
static int knows_sha(void) { return 0; }
static void blob_name(const char *content, size_t size, unsigned char *digest) {}
#endif

static int open_again(int fd, const char *name, int flags, mode_t mode) {
    int found;
    do found = openat(fd, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    while (found < 0 && errno == EINTR);
    return found;
}

/* The whole file into the buffer, which has room for all that is allowed. */
static int read_all(int fd, Job *job, size_t *size) {
    *size = 0;
    for (;;) {
        ssize_t count = read(fd, job->at + *size, job->large - *size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return errno;
        if (!count) return 0;
        *size += (size_t)count;
        if (*size >= job->large) return IS_LARGE;
    }
}

static int write_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t count = write(fd, data, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return errno;
        data += count;
        size -= (size_t)count;
    }
    return 0;
}

/* 0, an errno, or CANNOT. */
static int share(int source, int target) {
    if (!ioctl(target, CLONE, source)) return 0;
    int known = errno == EOPNOTSUPP || errno == EXDEV || errno == EINVAL || errno == ENOTTY;
    return known ? CANNOT : errno;
}

/* In 64 bits from 1896 to 2481, as `fsio.bounded` has it; the last part of the numbers is negative. */
#define NEGATIVE (-((uint64_t)1 << 61))

static uint64_t nanoseconds(struct timespec t) {
    if (t.tv_sec < -2305843009) return NEGATIVE;
    if (t.tv_sec > 16140901064) return NEGATIVE - 1;
    uint64_t found = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (t.tv_sec < 0) return found < NEGATIVE ? NEGATIVE : found;
    return found >= NEGATIVE ? NEGATIVE - 1 : found;
}

static PyObject *moment(uint64_t time) {
    return time >= NEGATIVE ? PyLong_FromLongLong((int64_t)time) : PyLong_FromUnsignedLongLong(time);
}

#ifdef __linux__
static int is_part_of_state(const char *name) {
    return !strncmp(name, "user.", 5) || !strncmp(name, "system.posix_acl_", 17) ||
           !strcmp(name, "security.capability");
}

/* Whether there are extended attributes that are part of a state. */
static int has_attributes(int fd) {
    char names[4096];
    ssize_t size = flistxattr(fd, names, sizeof names);
    if (size < 0) return errno == ERANGE;
    for (char *at = names; at < names + size; at += strlen(at) + 1)
        if (is_part_of_state(at)) return 1;
    return 0;
}
#else
static int has_attributes(int fd) { return 0; }
#endif

/* Mode and mtime as the source has them, after the last write: a write takes set-id bits away. */
static int finish(int source, int target, mode_t mode, File *file) {
    struct stat found, copy;
    if (fstat(source, &found)) return errno;
    file->has = has_attributes(source) || has_attributes(target);
    struct timespec times[2] = {found.st_atim, found.st_mtim};
    if (futimens(target, times) || fstat(target, &copy)) return errno;
    if ((copy.st_mode & 07777) != mode && (fchmod(target, mode) || fstat(target, &copy)))
        return errno;
    uint64_t stamp[STAMP] = {copy.st_ino, (uint64_t)copy.st_size, nanoseconds(copy.st_mtim),
                             nanoseconds(copy.st_ctim), copy.st_mode};
    memcpy(file->stamp, stamp, sizeof stamp);
    return 0;
}

static int create(Job *job, File *file, mode_t mode, int *target) {
    *target = open_again(job->target, file->name, O_WRONLY | O_CREAT | O_EXCL, mode & 0777);
    return *target < 0 ? errno : 0;
}

static int content(Job *job, File *file, int source, mode_t mode, int *target) {
    int error;
    if (job->reflink) {
        if ((error = create(job, file, mode, target))) return error;
        if ((error = share(source, *target))  != CANNOT) return error;
        job->reflink = 0;
    }
    if ((error = read_all(source, job, &file->size))) {
        if (*target >= 0) unlinkat(job->target, file->name, 0);
        return error;
    }
    if (*target < 0 && (error = create(job, file, mode, target))) return error;
    file->read = 1;
    if (job->keep == DIGEST) blob_name(job->at, file->size, file->digest);
    return write_all(*target, job->at, file->size);
}

static int copy_one(Job *job, File *file) {
    struct stat found;
    int source = open_again(job->source, file->name, O_RDONLY | O_NONBLOCK, 0), target = -1, error;
    if (source < 0) return errno == ELOOP || errno == ENXIO ? IS_OTHER : errno;
    if (fstat(source, &found)) error = errno;
    else if (!S_ISREG(found.st_mode)) error = IS_OTHER;
    else if ((uint64_t)found.st_size >= job->large) error = IS_LARGE;
    else {
        mode_t mode = found.st_mode & 07777;
        error = content(job, file, source, mode, &target);
        if (!error) error = finish(source, target, mode, file);
    }
    if (target >= 0) close(target);
    close(source);
    return error;
}

static PyObject *described(const File *file, int keep) {
    if (file->error) return PyLong_FromLong(file->error);
    const uint64_t *stamp = file->stamp;
    PyObject *count;
    if (!file->read) count = Py_NewRef(Py_None);
    else if (keep == DIGEST)
        count = PyBytes_FromStringAndSize((const char *)file->digest, SHA1_SIZE);
    else count = PyLong_FromSize_t(file->size);
    if (!count) return NULL;
    return Py_BuildValue("((KKNNK)NO)", (unsigned long long)stamp[0], (unsigned long long)stamp[1],
                         moment(stamp[2]), moment(stamp[3]), (unsigned long long)stamp[4], count,
                         file->has ? Py_True : Py_False);
}

static PyObject *copy_files(PyObject *self, PyObject *arguments) {
    Job job = {0};
    PyObject *names, *list = NULL;
    Py_buffer buffer;
    Py_ssize_t large;
    if (!PyArg_ParseTuple(arguments, "iiO!pw*ni", &job.source, &job.target, &PyTuple_Type, &names,
                          &job.reflink, &buffer, &large, &job.keep))
        return NULL;
    job.large = (size_t)large;
    job.at = buffer.buf;
    char *end = job.at + buffer.len;
    size_t count = (size_t)PyTuple_GET_SIZE(names), done = 0;
    File *files = calloc(count + 1, sizeof *files);
    if (!files) { PyErr_NoMemory(); goto out; }
    for (size_t n = 0; n < count; n++)
        if (!(files[n].name = PyBytes_AsString(PyTuple_GET_ITEM(names, (Py_ssize_t)n)))) goto out;
    Py_BEGIN_ALLOW_THREADS
    while (done < count && (size_t)(end - job.at) >= job.large) {
        File *file = &files[done++];
        file->error = copy_one(&job, file);
        if (job.keep == BYTES && !file->error && file->read) job.at += file->size;
    }
    Py_END_ALLOW_THREADS
    list = PyList_New((Py_ssize_t)done);
    for (size_t n = 0; list && n < done; n++) {
        PyObject *one = described(&files[n], job.keep);
        if (!one) { Py_CLEAR(list); break; }
        PyList_SET_ITEM(list, (Py_ssize_t)n, one);
    }
out:
    free(files);
    PyBuffer_Release(&buffer);
    return list ? Py_BuildValue("(NO)", list, job.reflink ? Py_True : Py_False) : NULL;
}

static PyObject *blob_name_of(PyObject *self, PyObject *content) {
    unsigned char digest[SHA1_SIZE];
    Py_buffer data;
    if (!knows_sha()) {
        PyErr_SetString(PyExc_NotImplementedError, "this processor has no SHA instructions");
        return NULL;
    }
    if (PyObject_GetBuffer(content, &data, PyBUF_SIMPLE)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    blob_name(data.buf, (size_t)data.len, digest);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyBytes_FromStringAndSize((const char *)digest, SHA1_SIZE);
}

static PyMethodDef methods[] = {
    {"blob_name", blob_name_of, METH_O,
     "blob_name(content): the SHA-1 git would give it; only where KNOWS_SHA"},
    {"copy_files", copy_files, METH_VARARGS,
     "copy_files(source_fd, target_fd, names, reflink, buffer, large, keep)"},
    {NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_copy", "Copies of files.", -1, methods};

PyMODINIT_FUNC PyInit__copy(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "KNOWS_SHA", knows_sha())) Py_CLEAR(made);
    if (made && PyModule_AddIntConstant(made, "FORM", FORM)) Py_CLEAR(made);
    return made;
}
