/* Preloaded into a process, lets it remember that a file below ABSENT_FOLDER did not exist, as a client of NFS does.

The process sees a file that another one creates later only after it has opened the folder to list it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MAX_NAMES 4096

static char *names[MAX_NAMES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_below(const char *path) {
  const char *folder = getenv("ABSENT_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

/* Remember a name whose look-up failed with `error`. */
static void remember(const char *path, int error) {
  if (error != ENOENT || !is_below(path)) return;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_NAMES; i++)
    if (!names[i]) {
      names[i] = strdup(path);
      break;
    }
  pthread_mutex_unlock(&lock);
}

static int is_absent(const char *path) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; path && i < MAX_NAMES; i++) found |= names[i] && !strcmp(names[i], path);
  pthread_mutex_unlock(&lock);
  if (found) errno = ENOENT;
  return found;
}

/* Forget a name, or all names in a folder. */
static void forget(const char *path, int is_folder) {
  pthread_mutex_lock(&lock);
  size_t length = strlen(path);
  for (int i = 0; i < MAX_NAMES; i++) {
    char *name = names[i], *end = name ? strrchr(name, '/') : NULL;
    if (!name || (is_folder ? (size_t)(end - name) != length || strncmp(name, path, length) : strcmp(name, path) != 0)) continue;
    free(name);
    names[i] = NULL;
  }
  pthread_mutex_unlock(&lock);
}

#define LOOK_UP(call)                          \
  if (is_absent(path)) return -1;              \
  int result = call;                           \
  if (result < 0) remember(path, errno);       \
  return result

#define OPEN(name, ...)                        \
  mode_t mode = 0;                             \
  if (flags & (O_CREAT | O_TMPFILE)) {         \
    va_list given;                             \
    va_start(given, flags);                    \
    mode = va_arg(given, mode_t);              \
    va_end(given);                             \
    forget(path, 0);                           \
  }                                            \
  LOOK_UP(REAL(name)(__VA_ARGS__, flags, mode))

int open(const char *path, int flags, ...) { OPEN(open, path); }
int open64(const char *path, int flags, ...) { OPEN(open64, path); }
int openat(int fd, const char *path, int flags, ...) { OPEN(openat, fd, path); }
int openat64(int fd, const char *path, int flags, ...) { OPEN(openat64, fd, path); }
int stat(const char *path, struct stat *found) { LOOK_UP(REAL(stat)(path, found)); }
int stat64(const char *path, struct stat64 *found) { LOOK_UP(REAL(stat64)(path, found)); }
int fstatat(int fd, const char *path, struct stat *found, int flags) { LOOK_UP(REAL(fstatat)(fd, path, found, flags)); }
int fstatat64(int fd, const char *path, struct stat64 *found, int flags) {
  LOOK_UP(REAL(fstatat64)(fd, path, found, flags));
}

int link(const char *path, const char *to) {
  forget(to, 0);
  return REAL(link)(path, to);
}

int rename(const char *path, const char *to) {
  forget(to, 0);
  return REAL(rename)(path, to);
}

int mkdir(const char *path, mode_t mode) {
  forget(path, 0);
  return REAL(mkdir)(path, mode);
}

DIR *opendir(const char *path) {
  DIR *folder = REAL(opendir)(path);
  if (folder) forget(path, 1);
  return folder;
}
