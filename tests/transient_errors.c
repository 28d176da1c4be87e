/* Preloaded into a process, lets one in FAULT_ONE_IN calls on files below FAULT_FOLDER fail with an error that may pass.

Each error is appended to FAULT_LOG: its number, the call, the path. The rest of the environment is left alone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const int errors[] = {ESTALE, EIO, ETIMEDOUT, EMFILE};
static uint64_t calls;

static uint64_t chance(void) {
  uint64_t x = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) * 0x9e3779b97f4a7c15u;
  x += (uint64_t)atol(getenv("FAULT_SEED")) * 0xbf58476d1ce4e5b9u + (uint64_t)getpid();
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static int is_below(const char *path) {
  const char *folder = getenv("FAULT_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

/* Whether the call is to fail; errno says why. Only opening a file can run out of descriptors. */
static int fails(const char *call, const char *path) {
  if (!is_below(path)) return 0;
  uint64_t drawn = chance();
  if (drawn % (uint64_t)atol(getenv("FAULT_ONE_IN"))) return 0;
  int error = errors[(drawn >> 32) % (strcmp(call, "open") ? 3 : 4)];
  int log = REAL(open)(getenv("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644);
  char line[4096];
  int length = snprintf(line, sizeof line, "%d %s %s\n", error, call, path);
  if (REAL(write)(log, line, (size_t)length) != length) abort();
  close(log);
  errno = error;
  return 1;
}

static int fails_fd(const char *call, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int kept = errno;
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = kept;
  if (length < 0) return 0;
  path[length] = 0;
  return fails(call, path);
}

/* As `fails`, for a path that may be relative to an open folder. */
static int fails_at(const char *call, int fd, const char *path) {
  char link[64], whole[8192];
  if (*path == '/' || fd < 0) return fails(call, path);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, whole, 4096);
  if (length < 0) return 0;
  snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
  return fails(call, whole);
}

#define OPEN(name, failure, ...)                          \
  mode_t mode = 0;                                        \
  if (flags & (O_CREAT | O_TMPFILE)) {                    \
    va_list given;                                        \
    va_start(given, flags);                               \
    mode = va_arg(given, mode_t);                         \
    va_end(given);                                        \
  }                                                       \
  if (failure) return -1;                                 \
  return REAL(name)(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, fails("open", path), path); }
int open64(const char *path, int flags, ...) { OPEN(open64, fails("open", path), path); }
int openat(int fd, const char *path, int flags, ...) { OPEN(openat, fails_at("open", fd, path), fd, path); }
int openat64(int fd, const char *path, int flags, ...) { OPEN(openat64, fails_at("open", fd, path), fd, path); }

ssize_t read(int fd, void *to, size_t size) { return fails_fd("read", fd) ? -1 : REAL(read)(fd, to, size); }
ssize_t write(int fd, const void *from, size_t size) { return fails_fd("write", fd) ? -1 : REAL(write)(fd, from, size); }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
  return fails_fd("read", fd) ? -1 : REAL(pread64)(fd, to, size, at);
}
ssize_t pread(int fd, void *to, size_t size, off_t at) { return fails_fd("read", fd) ? -1 : REAL(pread)(fd, to, size, at); }
int fsync(int fd) { return fails_fd("fsync", fd) ? -1 : REAL(fsync)(fd); }
int link(const char *path, const char *to) { return fails("link", path) ? -1 : REAL(link)(path, to); }
int rename(const char *path, const char *to) { return fails("rename", path) ? -1 : REAL(rename)(path, to); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }
DIR *opendir(const char *path) { return fails("opendir", path) ? NULL : REAL(opendir)(path); }
int stat(const char *path, struct stat *found) { return fails("stat", path) ? -1 : REAL(stat)(path, found); }
int stat64(const char *path, struct stat64 *found) { return fails("stat", path) ? -1 : REAL(stat64)(path, found); }
int fstatat(int fd, const char *path, struct stat *found, int flags) {
  return fails("stat", path) ? -1 : REAL(fstatat)(fd, path, found, flags);
}
int fstatat64(int fd, const char *path, struct stat64 *found, int flags) {
  return fails("stat", path) ? -1 : REAL(fstatat64)(fd, path, found, flags);
}
