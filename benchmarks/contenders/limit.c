/* The limit that writers are held against: read, CRC32C, write, by one thread, with nothing in between.
 *
 * Each file is opened, asked for its size, read at once straight into its place in the output and given a TFRecord's
 * framing around it. Nothing is copied, checked or described: no writer that does more can be faster.
 */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC8(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#define CRC64(crc, word) _mm_crc32_u64(crc, word)
#elif defined(__aarch64__)
#include <arm_acle.h>
#define CRC8(crc, byte) __crc32cb((uint32_t)(crc), byte)
#define CRC64(crc, word) __crc32cd((uint32_t)(crc), word)
#else
#error "no instruction for CRC32C is known here"
#endif

enum { LANE = 1024, HEADER = 12, FOOTER = 4, FLUSH = 1 << 16 };

static uint32_t over_lane[4][256]; /* what a CRC becomes over LANE zero bytes, by each of its four bytes */

static uint64_t word_at(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint32_t shift(uint32_t crc) {
    return over_lane[0][crc & 255] ^ over_lane[1][crc >> 8 & 255] ^ over_lane[2][crc >> 16 & 255]
        ^ over_lane[3][crc >> 24];
}

static void fill_tables(void) {
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) {
            uint64_t crc = value << (8 * byte);
            for (int i = 0; i < LANE; i += 8)
                crc = CRC64(crc, 0);
            over_lane[byte][value] = (uint32_t)crc;
        }
}

/* Three lanes at once: the instruction takes three cycles, and one can begin in each. */
static uint32_t crc32c(const uint8_t *bytes, size_t length) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; length >= 3 * LANE; length -= 3 * LANE, bytes += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (int i = 0; i < LANE; i += 8) {
            crc = CRC64(crc, word_at(bytes + i));
            second = CRC64(second, word_at(bytes + i + LANE));
            third = CRC64(third, word_at(bytes + i + 2 * LANE));
        }
        crc = shift(shift((uint32_t)crc) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; length >= 8; length -= 8, bytes += 8)
        crc = CRC64(crc, word_at(bytes));
    for (; length; length--, bytes++)
        crc = CRC8(crc, *bytes);
    return (uint32_t)crc ^ 0xFFFFFFFFu;
}

static void put_masked_crc(uint8_t *place, const uint8_t *bytes, size_t length) {
    uint32_t crc = crc32c(bytes, length);
    crc = ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
    memcpy(place, &crc, sizeof crc);
}

struct output {
    uint8_t *buffer;
    size_t used, room;
    int file;
};

static int flush(struct output *output) {
    size_t done = 0;
    while (done < output->used) {
        ssize_t count = write(output->file, output->buffer + done, output->used - done);
        if (count < 0)
            return -1;
        done += (size_t)count;
    }
    output->used = 0;
    return 0;
}

static int reserve(struct output *output, size_t needed) {
    if (output->used + needed <= output->room)
        return 0;
    uint8_t *larger = realloc(output->buffer, output->used + needed);
    if (!larger)
        return -1;
    output->buffer = larger;
    output->room = output->used + needed;
    return 0;
}

static int read_exactly(int file, uint8_t *place, size_t length) {
    while (length) {
        ssize_t count = read(file, place, length);
        if (count <= 0)
            return -1;
        place += count;
        length -= (size_t)count;
    }
    return 0;
}

static int append_open(struct output *output, int file) {
    struct stat status;
    if (fstat(file, &status))
        return -1;
    uint64_t length = (uint64_t)status.st_size;
    if (reserve(output, HEADER + length + FOOTER))
        return -1;
    uint8_t *record = output->buffer + output->used;
    if (read_exactly(file, record + HEADER, length))
        return -1;
    memcpy(record, &length, sizeof length);
    put_masked_crc(record + sizeof length, record, sizeof length);
    put_masked_crc(record + HEADER + length, record + HEADER, length);
    output->used += HEADER + length + FOOTER;
    return output->used >= FLUSH ? flush(output) : 0;
}

static int append(struct output *output, int folder, const char *path) {
    int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int failed = append_open(output, file);
    close(file);
    return failed;
}

static int write_records(struct output *output, int folder, const char **paths, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (append(output, folder, paths[i]))
            return -1;
    return flush(output);
}

/* Write the files at `paths` below `root` as the records of `target`; 0, or -1 with errno set. */
int write_shard(const char *root, const char **paths, size_t count, const char *target) {
    struct output output = {malloc(2 * FLUSH), 0, 2 * FLUSH, -1};
    int failed = -1, folder = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fill_tables();
    output.file = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output.buffer && folder >= 0 && output.file >= 0)
        failed = write_records(&output, folder, paths, count);
    close(folder);
    if (output.file >= 0 && close(output.file))
        failed = -1;
    free(output.buffer);
    return failed;
}
