/* Copies regular files of one directory into another, without Python's lock.
 *
 * copy_files(source_fd, target_fd, names, reflink, keep, large, most) -> (list, reflink)
 *
 * For each name, in order: ((inode, size, mtime_ns, ctime_ns, mode), bytes | None) of the copy, or an
 * errno. The bytes are what was written, if `keep` and if they were read: not after a reflink.
 * -1: of `large` bytes or more, -2: no regular file; both are left alone. The list ends early once
 * `most` bytes were kept. `reflink` comes back false if the disk cannot.
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
#include <unistd.h>

#define CLONE 0x40049409 /* FICLONE, as linux/fs.h has it */
#define STAMP 5
#define IS_LARGE -1
#define IS_OTHER -2
#define CANNOT -3

typedef struct { const char *name; int error; uint64_t stamp[STAMP]; char *data; size_t size; } File;

typedef struct {
    int source, target, reflink, keep;
    size_t large, most;
    char *buffer;
} Job;

static int open_again(int fd, const char *name, int flags, mode_t mode) {
    int found;
    do found = openat(fd, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    while (found < 0 && errno == EINTR);
    return found;
}

/* The whole file into the buffer, which has room for one byte more than is allowed. */
static int read_all(int fd, Job *job, size_t *size) {
    *size = 0;
    for (;;) {
        ssize_t count = read(fd, job->buffer + *size, job->large + 1 - *size);
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

static uint64_t nanoseconds(struct timespec t) {
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Mode and mtime as the source has them, after the last write: a write takes set-id bits away. */
static int finish(int source, int target, mode_t mode, File *file) {
    struct stat found, copy;
    if (fstat(source, &found)) return errno;
    struct timespec times[2] = {found.st_atim, found.st_mtim};
    if (futimens(target, times) || fstat(target, &copy)) return errno;
    if ((copy.st_mode & 07777) != mode && (fchmod(target, mode) || fstat(target, &copy)))
        return errno;
    uint64_t stamp[STAMP] = {copy.st_ino, (uint64_t)copy.st_size, nanoseconds(copy.st_mtim),
                             nanoseconds(copy.st_ctim), copy.st_mode};
    memcpy(file->stamp, stamp, sizeof stamp);
    return 0;
}

static int keep_bytes(Job *job, File *file, size_t size) {
    file->data = malloc(size + 1);
    if (!file->data) return ENOMEM;
    memcpy(file->data, job->buffer, size);
    file->size = size;
    return 0;
}

static int create(Job *job, File *file, mode_t mode, int *target) {
    *target = open_again(job->target, file->name, O_WRONLY | O_CREAT | O_EXCL, mode & 0777);
    return *target < 0 ? errno : 0;
}

static int content(Job *job, File *file, int source, mode_t mode, int *target) {
    size_t size;
    int error = 0;
    if (job->reflink) {
        if ((error = create(job, file, mode, target))) return error;
        if ((error = share(source, *target))  != CANNOT) return error;
        job->reflink = 0;
    }
    if ((error = read_all(source, job, &size))) {
        if (*target >= 0) unlinkat(job->target, file->name, 0);
        return error;
    }
    if (*target < 0 && (error = create(job, file, mode, target))) return error;
    if ((error = write_all(*target, job->buffer, size))) return error;
    return job->keep ? keep_bytes(job, file, size) : 0;
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

static PyObject *described(const File *file) {
    if (file->error) return PyLong_FromLong(file->error);
    const uint64_t *stamp = file->stamp;
    PyObject *data = Py_None;
    if (file->data) {
        data = PyBytes_FromStringAndSize(file->data, (Py_ssize_t)file->size);
        if (!data) return NULL;
    } else Py_INCREF(data);
    return Py_BuildValue("((KKLLK)N)", (unsigned long long)stamp[0], (unsigned long long)stamp[1],
                         (long long)stamp[2], (long long)stamp[3], (unsigned long long)stamp[4],
                         data);
}

static PyObject *copy_files(PyObject *self, PyObject *arguments) {
    Job job = {0};
    PyObject *names, *list = NULL;
    Py_ssize_t large, most;
    if (!PyArg_ParseTuple(arguments, "iiO!ppnn", &job.source, &job.target, &PyTuple_Type, &names,
                          &job.reflink, &job.keep, &large, &most))
        return NULL;
    job.large = (size_t)large;
    job.most = (size_t)most;
    size_t count = (size_t)PyTuple_GET_SIZE(names), done = 0, kept = 0;
    File *files = calloc(count + 1, sizeof *files);
    job.buffer = malloc(job.large + 1);
    if (!files || !job.buffer) { PyErr_NoMemory(); goto out; }
    for (size_t n = 0; n < count; n++)
        if (!(files[n].name = PyBytes_AsString(PyTuple_GET_ITEM(names, (Py_ssize_t)n)))) goto out;
    Py_BEGIN_ALLOW_THREADS
    while (done < count && kept <= job.most) {
        files[done].error = copy_one(&job, &files[done]);
        kept += files[done++].size;
    }
    Py_END_ALLOW_THREADS
    list = PyList_New((Py_ssize_t)done);
    for (size_t n = 0; list && n < done; n++) {
        PyObject *one = described(&files[n]);
        if (!one) { Py_CLEAR(list); break; }
        PyList_SET_ITEM(list, (Py_ssize_t)n, one);
    }
out:
    for (size_t n = 0; files && n < count; n++) free(files[n].data);
    free(files);
    free(job.buffer);
    return list ? Py_BuildValue("(NO)", list, job.reflink ? Py_True : Py_False) : NULL;
}

static PyMethodDef methods[] = {
    {"copy_files", copy_files, METH_VARARGS,
     "copy_files(source_fd, target_fd, names, reflink, keep, large, most)"},
    {NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_copy", "Copies of files.", -1, methods};

PyMODINIT_FUNC PyInit__copy(void) { return PyModule_Create(&module); }
