/* A tree's stat data, one blob per directory, read by two threads.
 *
 * walk(root_fd, prune_names, prune_paths) -> list of (path, blob | errno)
 *
 * blob: u64 newest time stamp in it, big-endian so that blobs compare by it, then per entry sorted by name
 *       u16 length, name, u64 inode, size, i64 mtime_ns, ctime_ns, u64 mode | nlink << 32
 *
 * state_text(manifest) -> what the state of a directory is the hash of
 *
 * pieces(manifest, before) -> manifests that hold its entries in parts; of a part that the manifest
 *       before had as well, its number there
 * picked(manifest, names) -> a manifest of the entries of these names
 * changed(manifest, [(name, entry, or nothing)]) -> the manifest with these entries instead
 * unequal(before, after) -> names whose entries differ
 * unsafe(manifest) -> the first name that is none, or is not sorted behind the one before it; or None
 *       all sorted by name
 *
 * open_below(root_fd, path) -> descriptor of a directory, reached through no link
 * look(dir_fd, name, limit) -> None, or what stat says of a name, a small file's content, and
 *       whether a file has extended attributes, which is asked unless limit is negative
 * put(dir_fd, name, data, mode, mtime_ns) -> inode, size and mtime of a new file
 *
 * `walker.py`, `trees.py` and `files.py` have the same in Python; tests feed both the same.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#ifdef __linux__
#include <sys/xattr.h>
#endif
#include <unistd.h>

#define FORM 2 /* as compiled.py has it */
#define THREADS 2
#define FIELDS 5
#define LARGE 1000 /* entries from which on a directory is cut into larger pieces */
#define LONGEST 64 /* entries of a piece of a manifest */
#define NO_TIME (-(1LL << 62)) /* an mtime that is not put back */

typedef struct { char *name; size_t length; uint64_t field[FIELDS]; int is_dir; } Entry;
typedef struct { char *path; char *blob; size_t size; int error; } Result;
typedef struct { char **items; size_t count, room; } Stack;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int root, busy, failed;
    dev_t device;
    Stack todo;
    Result *results;
    size_t count, room;
    const char **names, **paths;
    size_t name_count, path_count;
} Walk;

static int push(Stack *stack, char *item) {
    if (stack->count == stack->room) {
        size_t room = stack->room ? stack->room * 2 : 256;
        char **items = realloc(stack->items, room * sizeof *items);
        if (!items) return -1;
        stack->items = items;
        stack->room = room;
    }
    stack->items[stack->count++] = item;
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const Entry *)a)->name, ((const Entry *)b)->name);
}

static int pruned(const Walk *walk, const char *name, const char *path) {
    for (size_t n = 0; n < walk->name_count; n++)
        if (!strcmp(walk->names[n], name)) return 1;
    for (size_t n = 0; n < walk->path_count; n++)
        if (!strcmp(walk->paths[n], path)) return 1;
    return 0;
}

#define PIECE 4000 /* bytes of a path in one call, below PATH_MAX */

/* Step by step, for kernels without openat2, and for the errno that tells what is wrong. */
static int open_parts(int from, const char *path, size_t size) {
    int fd = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char part[NAME_MAX + 1];
    for (const char *end = path + size; fd >= 0 && path < end;) {
        size_t length = strcspn(path, "/");
        if (length > NAME_MAX) { close(fd); errno = ENAMETOOLONG; return -1; }
        memcpy(part, path, length);
        part[length] = 0;
        int below = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int saved = errno;
        close(fd);
        errno = saved;
        fd = below;
        path += length + (path[length] == '/');
    }
    return fd;
}

static int open_piece(int from, const char *path, size_t size) {
#ifdef SYS_openat2
    struct { uint64_t flags, mode, resolve; } how = {
        O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0x04 | 0x08}; /* no links, beneath */
    char piece[PIECE + 1];
    memcpy(piece, path, size);
    piece[size] = 0;
    int fd = size ? (int)syscall(SYS_openat2, from, piece, &how, sizeof how) : -1;
    if (fd >= 0) return fd;
#endif
    return open_parts(from, path, size);
}

/* How many bytes of a path one call takes: all, or the most whole names that are short enough. */
static size_t first_piece(const char *path) {
    size_t size = strlen(path);
    if (size <= PIECE) return size;
    for (size = PIECE; size && path[size] != '/'; size--) {}
    return size ? size : strcspn(path, "/");
}

/* No symlink is followed, and no path is too long. */
static int open_below(int root, const char *path) {
    int fd = root;
    do {
        size_t size = first_piece(path);
        int below = size <= PIECE ? open_piece(fd, path, size) : (errno = ENAMETOOLONG, -1);
        int saved = errno;
        if (fd != root) close(fd);
        errno = saved;
        fd = below;
        path += size + (path[size] == '/');
    } while (fd >= 0 && *path);
    return fd;
}

static PyObject *open_below_root(PyObject *self, PyObject *args) {
    int root;
    const char *path;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy", &root, &path)) return NULL;
    int fd;
    Py_BEGIN_ALLOW_THREADS
    fd = open_below(root, path);
    Py_END_ALLOW_THREADS
    return fd < 0 ? PyErr_SetFromErrnoWithFilename(PyExc_OSError, path) : PyLong_FromLong(fd);
}

/* Where a thread was last: what lies below it is reached from there, not from the root. */
typedef struct { int fd; char *path; size_t size; } Near;

static void leave(Near *near) {
    if (near->fd >= 0) close(near->fd);
    free(near->path);
    *near = (Near){-1, NULL, 0};
}

static int open_near(int root, const char *path, Near *near) {
    size_t size = strlen(path);
    if (size <= PIECE) return open_below(root, path);
    int is_below = near->fd >= 0 && size > near->size && path[near->size] == '/' &&
                   !memcmp(path, near->path, near->size);
    int fd = is_below ? open_below(near->fd, path + near->size + 1) : open_below(root, path);
    int saved = errno;
    leave(near);
    if (fd >= 0) {
        *near = (Near){fcntl(fd, F_DUPFD_CLOEXEC, 0), strdup(path), size};
        if (near->fd < 0 || !near->path) leave(near);
    }
    errno = saved;
    return fd;
}

static char *joined(const char *prefix, const char *name) {
    size_t a = strlen(prefix), b = strlen(name);
    char *path = malloc(a + b + 2);
    if (!path) return NULL;
    memcpy(path, prefix, a);
    if (a) path[a++] = '/';
    memcpy(path + a, name, b + 1);
    return path;
}

static int add_result(Walk *walk, Result result) {
    if (walk->count == walk->room) {
        size_t room = walk->room ? walk->room * 2 : 1024;
        Result *results = realloc(walk->results, room * sizeof *results);
        if (!results) return -1;
        walk->results = results;
        walk->room = room;
    }
    walk->results[walk->count++] = result;
    return 0;
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

static char *pack(Entry *entries, size_t count, size_t *size) {
    uint64_t newest = 0;
    *size = 8;
    for (size_t n = 0; n < count; n++) *size += 2 + entries[n].length + 8 * FIELDS;
    char *blob = malloc(*size), *at = blob ? blob + 8 : NULL;
    for (size_t n = 0; blob && n < count; n++) {
        uint16_t length = (uint16_t)entries[n].length;
        for (int f = 2; f < 4; f++)
            if (entries[n].field[f] < NEGATIVE && entries[n].field[f] > newest)
                newest = entries[n].field[f];
        memcpy(at, &length, 2);
        memcpy(at + 2, entries[n].name, length);
        memcpy(at + 2 + length, entries[n].field, 8 * FIELDS);
        at += 2 + length + 8 * FIELDS;
    }
    for (int n = 0; blob && n < 8; n++) blob[n] = (char)(newest >> (56 - 8 * n));
    return blob;
}

/* Reads one directory; the directories below it go onto the stack. */
static int read_directory(Walk *walk, char *path, Near *near) {
    Entry *entries = NULL;
    size_t count = 0, room = 0;
    Stack below = {0};
    Result result = {path, NULL, 0, 0};
    int failed = -1;
    int fd = open_near(walk->root, path, near);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        result.error = errno;
        if (fd >= 0) close(fd);
        goto done;
    }
    struct dirent *item;
    while (errno = 0, (item = readdir(stream))) {
        const char *name = item->d_name;
        if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]))) continue;
        struct stat found;
        if (fstatat(fd, name, &found, AT_SYMLINK_NOFOLLOW)) {
            if (errno == ENOENT) continue;
            result.error = errno;
            break;
        }
        if (count == room) {
            room = room ? room * 2 : 32;
            Entry *more = realloc(entries, room * sizeof *entries);
            if (!more) goto out;
            entries = more;
        }
        Entry *entry = &entries[count];
        entry->length = strlen(name);
        entry->name = strdup(name);
        if (!entry->name) goto out;
        count++;
        uint64_t field[FIELDS] = {
            found.st_ino, (uint64_t)found.st_size, nanoseconds(found.st_mtim),
            nanoseconds(found.st_ctim), found.st_mode | (uint64_t)found.st_nlink << 32};
        memcpy(entry->field, field, sizeof field);
        if (!S_ISDIR(found.st_mode)) continue;
        char *child = joined(path, name);
        if (!child) goto out;
        if (pruned(walk, name, child)) { free(child); continue; }
        if (found.st_dev != walk->device) {
            pthread_mutex_lock(&walk->lock);
            int bad = add_result(walk, (Result){child, NULL, 0, EXDEV});
            pthread_mutex_unlock(&walk->lock);
            if (bad) { free(child); goto out; }
            continue;
        }
        if (push(&below, child)) { free(child); goto out; }
    }
    if (!item && errno && !result.error) result.error = errno;
    if (!result.error) {
        qsort(entries, count, sizeof *entries, by_name);
        result.blob = pack(entries, count, &result.size);
        if (!result.blob) goto out;
    }
done:
    pthread_mutex_lock(&walk->lock);
    failed = add_result(walk, result);
    for (size_t n = 0; !failed && n < below.count; n++) {
        failed = push(&walk->todo, below.items[n]);
        if (!failed) below.items[n] = NULL;
    }
    if (below.count > 1) pthread_cond_broadcast(&walk->more);
    pthread_mutex_unlock(&walk->lock);
    path = NULL;
out:
    for (size_t n = 0; n < count; n++) free(entries[n].name);
    free(entries);
    for (size_t n = 0; n < below.count; n++) free(below.items[n]);
    free(below.items);
    free(path);
    if (stream) closedir(stream);
    return failed;
}

static void *work(void *argument) {
    Walk *walk = argument;
    Near near = {-1, NULL, 0};
    pthread_mutex_lock(&walk->lock);
    for (;;) {
        while (!walk->todo.count && walk->busy && !walk->failed)
            pthread_cond_wait(&walk->more, &walk->lock);
        if (!walk->todo.count || walk->failed) break;
        char *path = walk->todo.items[--walk->todo.count];
        walk->busy++;
        pthread_mutex_unlock(&walk->lock);
        int failed = read_directory(walk, path, &near);
        pthread_mutex_lock(&walk->lock);
        walk->busy--;
        if (failed) walk->failed = 1;
        if (!walk->busy || walk->failed) pthread_cond_broadcast(&walk->more);
    }
    pthread_cond_broadcast(&walk->more);
    pthread_mutex_unlock(&walk->lock);
    leave(&near);
    return NULL;
}

static const char **strings(PyObject *tuple, size_t *count) {
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    const char **found = calloc(*count + 1, sizeof *found);
    for (size_t n = 0; found && n < *count; n++) {
        found[n] = PyBytes_AsString(PyTuple_GET_ITEM(tuple, (Py_ssize_t)n));
        if (!found[n]) { free(found); return NULL; }
    }
    return found;
}

static PyObject *as_list(Walk *walk) {
    PyObject *list = PyList_New((Py_ssize_t)walk->count);
    for (size_t n = 0; list && n < walk->count; n++) {
        Result *one = &walk->results[n];
        PyObject *pair = one->blob
            ? Py_BuildValue("(yy#)", one->path, one->blob, (Py_ssize_t)one->size)
            : Py_BuildValue("(yi)", one->path, one->error);
        if (!pair) { Py_CLEAR(list); break; }
        PyList_SET_ITEM(list, (Py_ssize_t)n, pair);
    }
    return list;
}

static PyObject *walk_tree(PyObject *self, PyObject *arguments) {
    Walk walk = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
    PyObject *names, *paths, *list = NULL;
    if (!PyArg_ParseTuple(arguments, "iO!O!", &walk.root, &PyTuple_Type, &names, &PyTuple_Type,
                          &paths))
        return NULL;
    struct stat found;
    if (fstat(walk.root, &found)) return PyErr_SetFromErrno(PyExc_OSError);
    walk.device = found.st_dev;
    walk.names = strings(names, &walk.name_count);
    walk.paths = walk.names ? strings(paths, &walk.path_count) : NULL;
    char *top = strdup("");
    if (!walk.names || !walk.paths || !top || push(&walk.todo, top)) {
        free(top);
        if (!PyErr_Occurred()) PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_t threads[THREADS - 1];
    int started = 0;
    for (; started < THREADS - 1; started++)
        if (pthread_create(&threads[started], NULL, work, &walk)) break;
    work(&walk);
    for (int n = 0; n < started; n++) pthread_join(threads[n], NULL);
    Py_END_ALLOW_THREADS
    list = walk.failed ? PyErr_NoMemory() : as_list(&walk);
done:
    for (size_t n = 0; n < walk.count; n++) { free(walk.results[n].path); free(walk.results[n].blob); }
    for (size_t n = 0; n < walk.todo.count; n++) free(walk.todo.items[n]);
    free(walk.results);
    free(walk.todo.items);
    free(walk.names);
    free(walk.paths);
    return list;
}

/* A cursor over MessagePack as `trees.py` writes it. */
typedef struct { const unsigned char *at, *end; int bad; } Cursor;

static uint64_t big_endian(Cursor *cursor, size_t width) {
    uint64_t value = 0;
    if ((size_t)(cursor->end - cursor->at) < width) { cursor->bad = 1; return 0; }
    while (width--) value = value << 8 | *cursor->at++;
    return value;
}

static const char *skip(Cursor *cursor, size_t length) {
    const char *found = (const char *)cursor->at;
    if ((size_t)(cursor->end - cursor->at) < length) { cursor->bad = 1; return found; }
    cursor->at += length;
    return found;
}

static size_t array_length(Cursor *cursor) {
    unsigned char mark = (unsigned char)big_endian(cursor, 1);
    if (mark >> 4 == 0x9) return mark & 0x0f;
    if (mark == 0xdc) return big_endian(cursor, 2);
    if (mark == 0xdd) return big_endian(cursor, 4);
    cursor->bad = 1;
    return 0;
}

/* Text or bytes. */
static const char *bytes_of(Cursor *cursor, size_t *length) {
    unsigned char mark = (unsigned char)big_endian(cursor, 1);
    if (mark >> 5 == 0x5) *length = mark & 0x1f;
    else if (mark == 0xc4 || mark == 0xd9) *length = big_endian(cursor, 1);
    else if (mark == 0xc5 || mark == 0xda) *length = big_endian(cursor, 2);
    else if (mark == 0xc6 || mark == 0xdb) *length = big_endian(cursor, 4);
    else { cursor->bad = 1; *length = 0; }
    return skip(cursor, *length);
}

/* Only of positive numbers is the value asked for. */
static uint64_t number(Cursor *cursor) {
    unsigned char mark = (unsigned char)big_endian(cursor, 1);
    if (mark < 0x80 || mark >= 0xe0) return mark;
    if (mark >= 0xcc && mark <= 0xcf) return big_endian(cursor, (size_t)1 << (mark - 0xcc));
    if (mark >= 0xd0 && mark <= 0xd3) return big_endian(cursor, (size_t)1 << (mark - 0xd0));
    cursor->bad = 1;
    return 0;
}

/* A number and a space. */
static char *spelled(char *at, uint64_t value, unsigned base) {
    char digits[24];
    int count = 0;
    do digits[count++] = (char)('0' + value % base);
    while (value /= base);
    while (count) *at++ = digits[--count];
    *at++ = ' ';
    return at;
}

static PyObject *state_text(PyObject *self, PyObject *manifest) {
    Cursor cursor = {0};
    Py_ssize_t size;
    char *data;
    if (PyBytes_AsStringAndSize(manifest, &data, &size)) return NULL;
    cursor.at = (const unsigned char *)data;
    cursor.end = cursor.at + size;
    size_t count = array_length(&cursor);
    /* An entry takes 14 bytes at least; its head and what is put before attributes, 96 at most. */
    if (count > (size_t)size) cursor.bad = 1;
    char *text = cursor.bad ? NULL : malloc((size_t)size + 96 * count + 1), *at = text;
    if (!text && !cursor.bad) return PyErr_NoMemory();
    for (size_t n = 0; n < count && !cursor.bad; n++) {
        size_t name_length, kind_length, key_length, state_length;
        if (array_length(&cursor) != 7) cursor.bad = 1;
        const char *name = bytes_of(&cursor, &name_length);
        const char *kind = bytes_of(&cursor, &kind_length);
        uint64_t mode = number(&cursor);
        number(&cursor);
        number(&cursor);
        const char *key = bytes_of(&cursor, &key_length);
        const char *state = bytes_of(&cursor, &state_length);
        if (cursor.bad || kind_length != 1) { cursor.bad = 1; break; }
        const char *content = *kind == 'd' ? state : key;
        size_t length = *kind == 'd' ? state_length : key_length;
        *at++ = *kind;
        at = spelled(at, mode, 8);
        at = spelled(at, name_length, 10);
        at = spelled(at, length, 10);
        memcpy(at, name, name_length);
        memcpy(at + name_length, content, length);
        at += name_length + length;
        if (*kind == 'd' || !state_length) continue;
        *at++ = 'x'; /* extended attributes */
        at = spelled(at, state_length, 10);
        memcpy(at, state, state_length);
        at += state_length;
    }
    PyObject *found = NULL;
    if (cursor.bad || cursor.at != cursor.end)
        PyErr_SetString(PyExc_ValueError, "not a manifest");
    else
        found = PyBytes_FromStringAndSize(text, at - text);
    free(text);
    return found;
}

/* The checksum of zip and PNG, as `binascii.crc32` gives it: four bits at a time. */
static uint32_t crc32_of(const char *data, size_t length) {
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = 0xffffffffu;
    for (size_t n = 0; n < length; n++) {
        crc ^= (unsigned char)data[n];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

/* One entry of a manifest: its bytes, and its name in them. */
typedef struct { const char *data, *name; size_t length, name_length; } Item;

/* A manifest that is read entry by entry. */
typedef struct { Cursor cursor; size_t left; Item item; } Reading;

/* The next entry; 0 if there is none, or what comes is none. */
static int next_item(Reading *reading) {
    Cursor *cursor = &reading->cursor;
    Item *item = &reading->item;
    size_t length;
    if (cursor->bad || !reading->left) return 0;
    reading->left--;
    item->data = (const char *)cursor->at;
    if (array_length(cursor) != 7) cursor->bad = 1;
    item->name = bytes_of(cursor, &item->name_length);
    bytes_of(cursor, &length);
    for (int field = 0; field < 3; field++) number(cursor);
    bytes_of(cursor, &length);
    bytes_of(cursor, &length);
    item->length = (size_t)((const char *)cursor->at - item->data);
    return !cursor->bad;
}

/* An entry takes 14 bytes at least: there cannot be more of them than bytes. */
static int begin(Reading *reading, PyObject *manifest) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(manifest, &data, &size)) return -1;
    *reading = (Reading){{(const unsigned char *)data, (const unsigned char *)data + size, 0}, 0, {0}};
    reading->left = array_length(&reading->cursor);
    if (reading->left > (size_t)size) { reading->cursor.bad = 1; reading->left = 0; }
    return 0;
}

static int read_well(const Reading *reading) {
    if (!reading->cursor.bad && reading->cursor.at == reading->cursor.end) return 1;
    PyErr_SetString(PyExc_ValueError, "not a manifest");
    return 0;
}

static int compared(const char *one, size_t length, const char *other, size_t other_length) {
    int order = memcmp(one, other, length < other_length ? length : other_length);
    return order ? order : (length > other_length) - (length < other_length);
}

/* Entries that lie one behind the other, as an array of their own. */
static PyObject *array_of(size_t count, const char *from, size_t length) {
    unsigned char head[5] = {0x90 | (count & 15)};
    int width = count < 16 ? 0 : count < 65536 ? 2 : 4;
    if (width) {
        head[0] = width == 2 ? 0xdc : 0xdd;
        for (int n = 0; n < width; n++) head[1 + n] = (unsigned char)(count >> 8 * (width - 1 - n));
    }
    PyObject *array = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(1 + (size_t)width + length));
    if (!array) return NULL;
    memcpy(PyBytes_AS_STRING(array), head, 1 + (size_t)width);
    memcpy(PyBytes_AS_STRING(array) + 1 + width, from, length);
    return array;
}

/* Entries of a manifest that are stored together. */
typedef struct { const char *from; size_t count, length, name, name_length; } Piece;

static Piece *cut(Reading *reading, size_t *count) {
    uint32_t mask = reading->left < LARGE ? 7 : 31;
    Piece *found = malloc((reading->left + 1) * sizeof *found), *last = found;
    *count = 0;
    if (!found) { PyErr_NoMemory(); return NULL; }
    last->count = 0;
    while (next_item(reading)) {
        Item *item = &reading->item;
        if (!last->count)
            *last = (Piece){item->data, 0, 0, (size_t)(item->name - item->data), item->name_length};
        last->count++;
        last->length += item->length;
        if ((crc32_of(item->name, item->name_length) & mask) && last->count < LONGEST && reading->left)
            continue;
        ++*count;
        (++last)->count = 0;
    }
    if (read_well(reading)) return found;
    free(found);
    return NULL;
}

static PyObject *pieces(PyObject *self, PyObject *arguments) {
    PyObject *manifest, *before, *list = NULL;
    Reading now, then;
    size_t count, old_count, at = 0;
    if (!PyArg_ParseTuple(arguments, "SS", &manifest, &before)) return NULL;
    if (begin(&now, manifest) || begin(&then, before)) return NULL;
    Piece *found = cut(&now, &count), *old = found ? cut(&then, &old_count) : NULL;
    if (old) list = PyList_New((Py_ssize_t)count);
    for (size_t n = 0; list && n < count; n++) {
        Piece *one = &found[n];
        while (at < old_count && compared(old[at].from + old[at].name, old[at].name_length,
                                          one->from + one->name, one->name_length) < 0)
            at++;
        int same = at < old_count && old[at].length == one->length && old[at].count == one->count &&
                   !memcmp(old[at].from, one->from, one->length);
        PyObject *item = same ? PyLong_FromSize_t(at) : array_of(one->count, one->from, one->length);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)n, item);
    }
    free(found);
    free(old);
    return list;
}

/* Where entries are gathered; nothing ever goes in beyond what it was made for. */
typedef struct { char *data, *at; size_t count; } Gathered;

static void gather(Gathered *gathered, const char *data, size_t length) {
    memcpy(gathered->at, data, length);
    gathered->at += length;
    gathered->count++;
}

static PyObject *gathered_of(Gathered *gathered, const Reading *reading) {
    PyObject *array = NULL;
    if (read_well(reading))
        array = array_of(gathered->count, gathered->data, (size_t)(gathered->at - gathered->data));
    free(gathered->data);
    return array;
}

static PyObject *picked(PyObject *self, PyObject *arguments) {
    PyObject *manifest, *names;
    Reading reading;
    if (!PyArg_ParseTuple(arguments, "SO!", &manifest, &PyList_Type, &names)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names), at = 0;
    for (Py_ssize_t n = 0; n < count; n++)
        if (!PyBytes_Check(PyList_GET_ITEM(names, n)))
            return PyErr_Format(PyExc_TypeError, "names are bytes");
    if (begin(&reading, manifest)) return NULL;
    Gathered found = {malloc((size_t)PyBytes_GET_SIZE(manifest) + 1)};
    if (!(found.at = found.data)) return PyErr_NoMemory();
    while (next_item(&reading)) {
        Item *item = &reading.item;
        int order = -1;
        for (; at < count; at++) {
            PyObject *name = PyList_GET_ITEM(names, at);
            order = compared(PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name), item->name,
                             item->name_length);
            if (order >= 0) break;
        }
        if (at < count && !order) gather(&found, item->data, item->length);
    }
    return gathered_of(&found, &reading);
}

/* The changes as (name, entry or nothing), and how many bytes the entries have; -1 if they are not. */
static Py_ssize_t size_of(PyObject *changes) {
    Py_ssize_t size = 0;
    for (Py_ssize_t n = 0; n < PyList_GET_SIZE(changes); n++) {
        PyObject *name, *entry;
        PyObject *pair = PyList_GET_ITEM(changes, n);
        if (!PyTuple_Check(pair)) { PyErr_SetString(PyExc_TypeError, "changes are pairs"); return -1; }
        if (!PyArg_ParseTuple(pair, "SS", &name, &entry)) return -1;
        size += PyBytes_GET_SIZE(entry);
    }
    return size;
}

static PyObject *changed(PyObject *self, PyObject *arguments) {
    PyObject *manifest, *changes;
    Reading reading;
    if (!PyArg_ParseTuple(arguments, "SO!", &manifest, &PyList_Type, &changes)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(changes), at = 0, more = size_of(changes);
    if (more < 0 || begin(&reading, manifest)) return NULL;
    Gathered made = {malloc((size_t)(PyBytes_GET_SIZE(manifest) + more) + 1)};
    if (!(made.at = made.data)) return PyErr_NoMemory();
    int there = next_item(&reading);
    while (there || at < count) {
        Item *item = &reading.item;
        PyObject *pair = at < count ? PyList_GET_ITEM(changes, at) : NULL;
        PyObject *name = pair ? PyTuple_GET_ITEM(pair, 0) : NULL;
        int order = !name ? 1 : !there ? -1 : compared(
            PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name), item->name, item->name_length);
        if (order > 0) {
            gather(&made, item->data, item->length);
        } else {
            PyObject *entry = PyTuple_GET_ITEM(pair, 1);
            if (PyBytes_GET_SIZE(entry))
                gather(&made, PyBytes_AS_STRING(entry), (size_t)PyBytes_GET_SIZE(entry));
            at++;
        }
        if (order >= 0) there = next_item(&reading);
    }
    return gathered_of(&made, &reading);
}

static int add_name(PyObject *list, const Item *item) {
    PyObject *name = PyBytes_FromStringAndSize(item->name, (Py_ssize_t)item->name_length);
    int failed = !name || PyList_Append(list, name);
    Py_XDECREF(name);
    return failed;
}

static PyObject *unequal(PyObject *self, PyObject *arguments) {
    PyObject *before, *after, *list;
    Reading one, other;
    if (!PyArg_ParseTuple(arguments, "SS", &before, &after)) return NULL;
    if (begin(&one, before) || begin(&other, after) || !(list = PyList_New(0))) return NULL;
    int left = next_item(&one), right = next_item(&other);
    while (list && (left || right)) {
        Item *a = &one.item, *b = &other.item;
        int order = !right ? -1 : !left ? 1 : compared(a->name, a->name_length, b->name,
                                                       b->name_length);
        int same = !order && a->length == b->length && !memcmp(a->data, b->data, a->length);
        if (!same && add_name(list, order > 0 ? b : a)) Py_CLEAR(list);
        if (order <= 0) left = next_item(&one);
        if (order >= 0) right = next_item(&other);
    }
    if (list && !(read_well(&one) && read_well(&other))) Py_CLEAR(list);
    return list;
}

/* A name, and no way to anywhere else. */
static int is_name(const char *name, size_t length) {
    if (!length || memchr(name, '/', length) || memchr(name, 0, length)) return 0;
    return !(name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.')));
}

static PyObject *unsafe(PyObject *self, PyObject *manifest) {
    Reading reading;
    const char *last = "";
    size_t last_length = 0;
    if (begin(&reading, manifest)) return NULL;
    while (next_item(&reading)) {
        Item *item = &reading.item;
        if (!is_name(item->name, item->name_length) ||
            compared(last, last_length, item->name, item->name_length) >= 0)
            return PyBytes_FromStringAndSize(item->name, (Py_ssize_t)item->name_length);
        last = item->name;
        last_length = item->name_length;
    }
    if (!read_well(&reading)) return NULL;
    Py_RETURN_NONE;
}

static int same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mode == b->st_mode &&
           nanoseconds(a->st_mtim) == nanoseconds(b->st_mtim) &&
           nanoseconds(a->st_ctim) == nanoseconds(b->st_ctim);
}

static int is_part_of_state(const char *name) {
    return !strncmp(name, "user.", 5) || !strncmp(name, "system.posix_acl_", 17) ||
           !strcmp(name, "security.capability");
}

/* Whether a file, open or at a path, has extended attributes that are part of its state. */
static int has_attributes(int fd, const char *path) {
#ifdef __linux__
    char names[4096];
    ssize_t size = path ? llistxattr(path, names, sizeof names) : flistxattr(fd, names, sizeof names);
    if (size < 0) return errno == ERANGE;
    for (char *at = names; at < names + size; at += strlen(at) + 1)
        if (is_part_of_state(at)) return 1;
#endif
    return 0;
}

static int has_attributes_at(int directory, const char *name) {
    char path[NAME_MAX + 40];
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", directory, name);
    return has_attributes(-1, path);
}

/* The content of a file that did not change meanwhile; NULL if there is any doubt. */
static char *read_small(int directory, const char *name, struct stat *found, int *has) {
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct stat before;
    char *data = NULL;
    size_t size = 0;
    ssize_t got = -1;
    if (!fstat(fd, &before) && same(&before, found)) data = malloc((size_t)found->st_size + 1);
    /* One byte more than there should be: a short answer is the end. */
    while (data && (got = read(fd, data + size, (size_t)found->st_size + 1 - size)) > 0)
        if ((size += (size_t)got) > (size_t)found->st_size) break;
    int good = data && !got && size == (size_t)found->st_size && !fstat(fd, found);
    if (good) *has = has_attributes(fd, NULL);
    close(fd);
    if (good && same(&before, found)) return data;
    free(data);
    return NULL;
}

static PyObject *look(PyObject *self, PyObject *arguments) {
    int directory, missing, has = 0;
    const char *name;
    long long limit;
    if (!PyArg_ParseTuple(arguments, "iyL", &directory, &name, &limit)) return NULL;
    struct stat found;
    char *data = NULL;
    Py_BEGIN_ALLOW_THREADS
    missing = fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) ? errno : 0;
    if (!missing && S_ISREG(found.st_mode) && found.st_size <= limit)
        data = read_small(directory, name, &found, &has);
    if (!missing && !data && limit >= 0 && S_ISREG(found.st_mode))
        has = has_attributes_at(directory, name);
    Py_END_ALLOW_THREADS
    if (missing == ENOENT) Py_RETURN_NONE;
    if (missing) { errno = missing; return PyErr_SetFromErrno(PyExc_OSError); }
    PyObject *result = Py_BuildValue(
        "(KLNNIkKy#O)", (unsigned long long)found.st_ino, (long long)found.st_size,
        moment(nanoseconds(found.st_mtim)), moment(nanoseconds(found.st_ctim)),
        (unsigned int)found.st_mode, (unsigned long)found.st_nlink,
        (unsigned long long)found.st_rdev, data, (Py_ssize_t)(data ? found.st_size : 0),
        has ? Py_True : Py_False);
    free(data);
    return result;
}

static PyObject *put(PyObject *self, PyObject *arguments) {
    int directory, failed = 0;
    unsigned int mode;
    PyObject *moment_given;
    const char *name;
    Py_buffer data;
    if (!PyArg_ParseTuple(arguments, "iyy*IO!", &directory, &name, &data, &mode, &PyLong_Type,
                          &moment_given))
        return NULL;
    int is_late;
    long long mtime = PyLong_AsLongLongAndOverflow(moment_given, &is_late);
    uint64_t late = is_late > 0 ? PyLong_AsUnsignedLongLong(moment_given) : 0;
    if (PyErr_Occurred()) { PyBuffer_Release(&data); return NULL; }
    struct stat found;
    Py_BEGIN_ALLOW_THREADS
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(directory, name, flags, 0600);
    if (fd < 0) failed = errno;
    const char *at = data.buf, *end = at + data.len;
    while (!failed && at < end) {
        ssize_t written = write(fd, at, (size_t)(end - at));
        if (written >= 0) at += written;
        else if (errno != EINTR) failed = errno;
    }
    if (!failed && fchmod(fd, mode)) failed = errno;
    long long second = mtime / 1000000000, rest = mtime % 1000000000;
    if (is_late > 0) { second = (long long)(late / 1000000000); rest = (long long)(late % 1000000000); }
    if (rest < 0) { second--; rest += 1000000000; }
    struct timespec times[2] = {{second, rest}, {second, rest}};
    if (!failed && (is_late > 0 || mtime != NO_TIME) && futimens(fd, times)) failed = errno;
    if (!failed && fstat(fd, &found)) failed = errno;
    if (fd >= 0) close(fd);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    if (failed) { errno = failed; return PyErr_SetFromErrnoWithFilename(PyExc_OSError, name); }
    return Py_BuildValue("(KLN)", (unsigned long long)found.st_ino, (long long)found.st_size,
                         moment(nanoseconds(found.st_mtim)));
}

static PyMethodDef methods[] = {
    {"walk", walk_tree, METH_VARARGS, "walk(root_fd, prune_names, prune_paths)"},
    {"open_below", open_below_root, METH_VARARGS, "open_below(root_fd, path)"},
    {"state_text", state_text, METH_O, "state_text(manifest)"},
    {"pieces", pieces, METH_VARARGS, "pieces(manifest, before)"},
    {"picked", picked, METH_VARARGS, "picked(manifest, names)"},
    {"changed", changed, METH_VARARGS, "changed(manifest, changes)"},
    {"unequal", unequal, METH_VARARGS, "unequal(before, after)"},
    {"unsafe", unsafe, METH_O, "unsafe(manifest)"},
    {"look", look, METH_VARARGS, "look(dir_fd, name, limit)"},
    {"put", put, METH_VARARGS, "put(dir_fd, name, data, mode, mtime_ns)"},
    {NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_walk", "Stat data of a tree.", -1, methods};

PyMODINIT_FUNC PyInit__walk(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "FORM", FORM)) Py_CLEAR(made);
    return made;
}
