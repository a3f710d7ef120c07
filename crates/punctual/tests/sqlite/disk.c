/* A disk for tests: it writes a journal of what it is told, so that what it would hold after a power cut at any moment can be rebuilt, and
 * it fails to sync when it is told so. Loaded in front of the C library (LD_PRELOAD) into each process of a store.
 *
 * DISK_JOURNAL  the journal: records of a head (struct head) and, for a write, its bytes
 * DISK_FAILS    "FROM TO": the syncs with these numbers fail with EIO, counted over all processes from 1
 *
 * DISK_JOURNAL.count holds struct shared. As on Linux, a failed sync drops what it should have written, and is told once to each
 * descriptor that was open then, by its next sync, which works.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { WRITTEN = 1, SYNCED = 2, FAILED = 3, RESIZED = 4, REMOVED = 5 };
enum { NEITHER = 0, DATABASE = 1, LOG = 2 };

struct head { int64_t what, file, at, length; };

/* The syncs so far, and how many of them failed, by file. */
struct shared { int64_t syncs, failures[LOG + 1]; };

enum { DESCRIPTORS_MAX = 1024 };

static int journal = -1, count = -1;
/* How many failures each descriptor has told. */
static int64_t told[DESCRIPTORS_MAX];
static int64_t fails_from, fails_to;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*next_pwrite)(int, const void *, size_t, off64_t);
static int (*next_sync)(int), (*next_truncate)(int, off64_t), (*next_unlink)(const char *);
static int (*next_open)(const char *, int, ...);

__attribute__((constructor)) static void begin(void) {
    char name[4096];
    const char *path = getenv("DISK_JOURNAL"), *fails = getenv("DISK_FAILS");
    next_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    next_sync = dlsym(RTLD_NEXT, "fdatasync");
    next_truncate = dlsym(RTLD_NEXT, "ftruncate64");
    next_unlink = dlsym(RTLD_NEXT, "unlink");
    next_open = dlsym(RTLD_NEXT, "open64");
    if (fails != NULL && sscanf(fails, "%ld %ld", &fails_from, &fails_to) != 2) abort();
    if (path == NULL) return;
    snprintf(name, sizeof name, "%s.count", path);
    journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    count = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (journal < 0 || count < 0) abort();
}

static int named(const char *path) {
    size_t n = strlen(path);
    if (n >= 3 && strcmp(path + n - 3, ".db") == 0) return DATABASE;
    if (n >= 7 && strcmp(path + n - 7, ".db-wal") == 0) return LOG;
    return NEITHER;
}

static int file_of(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = journal < 0 ? -1 : readlink(link, path, sizeof path - 1);
    if (n < 0) return NEITHER;
    path[n] = 0;
    return named(path);
}

/* One at a time over all threads and processes, so that the journal has the order of what happened. */
static void enter(void) { pthread_mutex_lock(&turn); flock(journal, LOCK_EX); }

static void leave(void) {
    int error = errno;
    flock(journal, LOCK_UN);
    pthread_mutex_unlock(&turn);
    errno = error;
}

static void note(int what, int file, int64_t at, int64_t length, const void *bytes) {
    int error = errno;
    struct head head = {what, file, at, length};
    if (write(journal, &head, sizeof head) != sizeof head) abort();
    if (bytes != NULL && write(journal, bytes, length) != length) abort();
    errno = error;
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at) {
    int file = file_of(fd);
    if (file == NEITHER) return next_pwrite(fd, bytes, n, at);
    enter();
    ssize_t done = next_pwrite(fd, bytes, n, at);
    if (done > 0) note(WRITTEN, file, at, done, bytes);
    leave();
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) { return pwrite64(fd, bytes, n, at); }

ssize_t write(int fd, const void *bytes, size_t n) {
    static ssize_t (*next_write)(int, const void *, size_t);
    if (next_write == NULL) next_write = dlsym(RTLD_NEXT, "write");
    int file = fd == journal || fd == count ? NEITHER : file_of(fd);
    if (file == NEITHER) return next_write(fd, bytes, n);
    enter();
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    ssize_t done = next_write(fd, bytes, n);
    if (done > 0) note(WRITTEN, file, at, done, bytes);
    leave();
    return done;
}

static struct shared look(void) {
    struct shared shared = {0};
    if (pread(count, &shared, sizeof shared, 0) < 0) abort();
    return shared;
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    int fd = next_open(path, flags, mode), file = journal < 0 ? NEITHER : named(path);
    if (file == NEITHER || fd < 0) return fd;
    if (fd >= DESCRIPTORS_MAX) abort();
    enter();
    told[fd] = look().failures[file];
    leave();
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open64(path, flags, mode);
}

int fdatasync(int fd) {
    int file = file_of(fd), done = 0;
    if (file == NEITHER) return next_sync(fd);
    if (fd >= DESCRIPTORS_MAX) abort();
    enter();
    struct shared shared = look();
    shared.syncs += 1;
    if (fails_from <= shared.syncs && shared.syncs <= fails_to) {
        shared.failures[file] += 1;
        note(FAILED, file, 0, 0, NULL);
    } else {
        /* Nobody cuts the power of this machine. */
        note(SYNCED, file, 0, 0, NULL);
    }
    if (told[fd] != shared.failures[file]) {
        told[fd] = shared.failures[file];
        errno = EIO;
        done = -1;
    }
    if (next_pwrite(count, &shared, sizeof shared, 0) != sizeof shared) abort();
    leave();
    return done;
}

int fsync(int fd) { return fdatasync(fd); }

int ftruncate64(int fd, off64_t length) {
    int file = file_of(fd);
    if (file == NEITHER) return next_truncate(fd, length);
    enter();
    int done = next_truncate(fd, length);
    if (done == 0) note(RESIZED, file, length, 0, NULL);
    leave();
    return done;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int unlink(const char *path) {
    int file = journal < 0 ? NEITHER : named(path);
    if (file == NEITHER) return next_unlink(path);
    enter();
    int done = next_unlink(path);
    if (done == 0) note(REMOVED, file, 0, 0, NULL);
    leave();
    return done;
}
