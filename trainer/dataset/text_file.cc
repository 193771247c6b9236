#include "trainer/dataset/text_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

namespace psd {
namespace {

constexpr std::string_view kGzipSuffix = ".gz";
constexpr const char* kChanged = "has changed since it was opened";

/// The time of a file's last change, in nanoseconds.
int64_t changeOf(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

class PlainTextFile : public TextFile {
 public:
  PlainTextFile(std::string path, uint64_t storedBytes, int64_t changedAt)
      : TextFile(std::move(path), storedBytes, changedAt) {}

  uint64_t storedBytesRead() const override { return at_; }
  Result<size_t> read(std::span<char> into) override {
    if (at_ == 0) {
      PSD_ASSIGN_OR_RETURN(stored_, openStored());
    }
    if (!stored_) return size_t{0};
    PSD_ASSIGN_OR_RETURN(const size_t got, readStored(*stored_, at_, into));
    at_ += got;
    if (at_ > storedBytes()) return problem(kChanged);
    if (got == 0) stored_ = nullptr;
    return got;
  }
  uint64_t cutAfter(uint64_t begin) const override { return begin + kCutBytes; }
  Status readAt(uint64_t offset, std::span<char> into) const override {
    PSD_ASSIGN_OR_RETURN(const auto stored, openStored());
    PSD_ASSIGN_OR_RETURN(const size_t got, readStored(*stored, offset, into));
    if (got == into.size()) return {};
    return problem("has become shorter since it was opened");
  }

 private:
  std::unique_ptr<Stored> stored_;  ///< while it is read
  uint64_t at_ = 0;
};

Bytef* bytesOf(char* text) { return reinterpret_cast<Bytef*>(text); }

/// Keeps places in the compressed data at which decompression can begin, as in zran.c of zlib's examples: the
/// number of bits of the previous byte that belong to it, and the last 32 KiB of the text before it.
class GzipTextFile : public TextFile {
 public:
  GzipTextFile(std::string path, uint64_t storedBytes, int64_t changedAt)
      : TextFile(std::move(path), storedBytes, changedAt), window_(kWindowBytes) {}

  uint64_t storedBytesRead() const override { return input_ ? input_->position() : storedBytes(); }
  Result<size_t> read(std::span<char> into) override;
  uint64_t cutAfter(uint64_t begin) const override;
  Status readAt(uint64_t offset, std::span<char> into) const override;

 private:
  static constexpr size_t kInputBytes = 128 << 10, kWindowBytes = 32 << 10, kTrailerBytes = 8;
  enum class Format : int { raw = -MAX_WBITS, gzip = MAX_WBITS + 16 };

  /// The decompressor and its input. Owned by one thread.
  struct Input {
    Input(std::unique_ptr<Stored> file, Format format)
        : stored(std::move(file)), made(inflateInit2(&stream, static_cast<int>(format)) == Z_OK) {}
    ~Input() { inflateEnd(&stream); }
    Input(const Input&) = delete;
    Input& operator=(const Input&) = delete;
    /// Of the next compressed byte, in the file.
    uint64_t position() const { return end - stream.avail_in; }

    const std::unique_ptr<Stored> stored;
    std::vector<char> bytes = std::vector<char>(kInputBytes);
    uint64_t end = 0;  ///< of the bytes in memory, in the file
    z_stream stream{};
    const bool made;
  };
  /// Where decompression can begin.
  struct AccessPoint {
    uint64_t offset = 0;  ///< of the text
    uint64_t stored = 0;  ///< of the first whole byte
    int bits = 0;         ///< of the byte before
    std::vector<char> window;
  };

  /// Makes sure that there is a compressed byte. False at the end of the file.
  Result<bool> fill(Input& input) const;
  /// Like fill(); the end of the file is an error.
  Status refill(Input& input) const;
  /// Decompresses into `out`; the number of bytes, possibly 0, and whether a member has ended.
  Result<std::pair<size_t, bool>> decompress(Input& input, std::span<char> out, int flush) const;
  Status skipTrailer(Input& input) const;
  Result<std::unique_ptr<Input>> beginAt(const AccessPoint& point) const;
  void keepWindow(const char* text, size_t count);
  void addAccessPoint();

  std::unique_ptr<Input> input_;  ///< of read(); null before the first, and at the end
  uint64_t textAt_ = 0;
  std::vector<char> window_;  ///< a ring of the newest text
  size_t windowAt_ = 0;
  bool inMember_ = true, ended_ = false;

  std::vector<AccessPoint> accessPoints_{AccessPoint{}};  ///< the first: the start of the file
};

Result<bool> GzipTextFile::fill(Input& input) const {
  if (input.stream.avail_in != 0) return true;
  PSD_ASSIGN_OR_RETURN(const size_t got, readStored(*input.stored, input.end, input.bytes));
  input.end += got;
  if (input.end > storedBytes()) return problem(kChanged);
  input.stream.next_in = bytesOf(input.bytes.data());
  input.stream.avail_in = static_cast<uInt>(got);
  return got != 0;
}

Status GzipTextFile::refill(Input& input) const {
  PSD_ASSIGN_OR_RETURN(const bool more, fill(input));
  if (more) return {};
  return problem("ends within its gzip data; expected a complete .gz file");
}

Result<std::pair<size_t, bool>> GzipTextFile::decompress(Input& input, std::span<char> out, int flush) const {
  PSD_RETURN_IF_ERROR(refill(input));
  input.stream.next_out = bytesOf(out.data());
  const auto room = static_cast<uInt>(std::min<size_t>(out.size(), kCutBytes));
  input.stream.avail_out = room;
  const int code = inflate(&input.stream, flush);
  if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
    const char* const why = input.stream.msg;
    return problem(std::string("damaged gzip data") + (why ? std::string(" (") + why + ")" : "") +
                   "; expected a complete .gz file");
  }
  return std::pair(size_t{room - input.stream.avail_out}, code == Z_STREAM_END);
}

void GzipTextFile::keepWindow(const char* text, size_t count) {
  if (count > kWindowBytes) {
    text += count - kWindowBytes;
    count = kWindowBytes;
  }
  const size_t first = std::min(count, kWindowBytes - windowAt_);
  std::memcpy(window_.data() + windowAt_, text, first);
  std::memcpy(window_.data(), text + first, count - first);
  windowAt_ = (windowAt_ + count) % kWindowBytes;
}

void GzipTextFile::addAccessPoint() {
  AccessPoint point{textAt_, input_->position(), input_->stream.data_type & 7,
                    std::vector<char>(kWindowBytes)};
  const auto middle = window_.begin() + static_cast<ptrdiff_t>(windowAt_);
  std::rotate_copy(window_.begin(), middle, window_.end(), point.window.begin());
  accessPoints_.push_back(std::move(point));
}

Result<size_t> GzipTextFile::read(std::span<char> into) {
  constexpr int kEndOfBlock = 128, kLastBlock = 64;  // of z_stream::data_type
  if (ended_) return size_t{0};
  if (!input_) {
    PSD_ASSIGN_OR_RETURN(input_, beginAt(accessPoints_.front()));
  }
  size_t done = 0;
  while (done < into.size()) {
    if (!inMember_) {
      PSD_ASSIGN_OR_RETURN(inMember_, fill(*input_));
      ended_ = !inMember_;
      if (ended_) break;
    }
    PSD_ASSIGN_OR_RETURN(const auto outcome, decompress(*input_, into.subspan(done), Z_BLOCK));
    const auto [got, memberEnds] = outcome;
    keepWindow(into.data() + done, got);
    done += got;
    textAt_ += got;
    const int state = input_->stream.data_type;
    if (memberEnds) {
      inMember_ = false;
      inflateReset(&input_->stream);
    } else if ((state & kEndOfBlock) != 0 && (state & kLastBlock) == 0 &&
               textAt_ >= accessPoints_.back().offset + kCutBytes) {
      addAccessPoint();
    }
  }
  if (ended_) input_ = nullptr;
  return done;
}

uint64_t GzipTextFile::cutAfter(uint64_t begin) const {
  constexpr uint64_t kMost = 4 * kCutBytes;  // where blocks of compressed data are long
  const auto point = std::ranges::lower_bound(accessPoints_, begin + kCutBytes / 2, {}, &AccessPoint::offset);
  return point == accessPoints_.end() ? begin + kMost : std::min(begin + kMost, point->offset);
}

Result<std::unique_ptr<GzipTextFile::Input>> GzipTextFile::beginAt(const AccessPoint& point) const {
  PSD_ASSIGN_OR_RETURN(auto stored, openStored());
  auto input = std::make_unique<Input>(std::move(stored), point.stored == 0 ? Format::gzip : Format::raw);
  if (!input->made) return problem("there is no memory to decompress it");
  if (point.stored == 0) return input;
  input->end = point.stored - (point.bits != 0 ? 1 : 0);
  PSD_RETURN_IF_ERROR(refill(*input));
  if (point.bits != 0) {
    const int byte = *input->stream.next_in++;
    input->stream.avail_in--;
    inflatePrime(&input->stream, point.bits, byte >> (8 - point.bits));
  }
  inflateSetDictionary(&input->stream, reinterpret_cast<const Bytef*>(point.window.data()), kWindowBytes);
  return input;
}

Status GzipTextFile::skipTrailer(Input& input) const {
  for (size_t left = kTrailerBytes; left > 0; --left) {
    PSD_RETURN_IF_ERROR(refill(input));
    input.stream.next_in++;
    input.stream.avail_in--;
  }
  return {};
}

Status GzipTextFile::readAt(uint64_t offset, std::span<char> into) const {
  const AccessPoint& point =
      *std::prev(std::ranges::upper_bound(accessPoints_, offset, {}, &AccessPoint::offset));
  PSD_ASSIGN_OR_RETURN(const auto input, beginAt(point));
  bool raw = point.stored != 0;
  std::vector<char> skipped(kInputBytes);
  uint64_t at = point.offset;
  for (size_t done = 0; done < into.size();) {
    const bool skips = at < offset;
    const auto out = skips ? std::span(skipped).first(std::min<uint64_t>(skipped.size(), offset - at))
                           : into.subspan(done);
    PSD_ASSIGN_OR_RETURN(const auto outcome, decompress(*input, out, Z_NO_FLUSH));
    const auto [got, memberEnds] = outcome;
    at += got;
    if (!skips) done += got;
    if (!memberEnds) continue;
    if (raw) PSD_RETURN_IF_ERROR(skipTrailer(*input));  // which the decompressor has not read
    raw = false;
    inflateReset2(&input->stream, static_cast<int>(Format::gzip));
  }
  return {};
}

}  // namespace

TextFile::Stored::~Stored() { close(fd_); }

Error TextFile::problem(const std::string& what) const { return {ErrorCode::io, path_ + ": " + what}; }

Result<std::unique_ptr<TextFile::Stored>> TextFile::openStored() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return problem(std::strerror(errno));
  auto stored = std::make_unique<Stored>(fd);
  struct stat status {};
  if (fstat(fd, &status) != 0) return problem(std::strerror(errno));
  if (static_cast<uint64_t>(status.st_size) != storedBytes_ || changeOf(status) != changedAt_) {
    return problem(kChanged);
  }
  return stored;
}

Result<size_t> TextFile::readStored(const Stored& stored, uint64_t offset, std::span<char> into) const {
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        pread(stored.fd(), into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return problem(std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

Result<std::unique_ptr<TextFile>> TextFile::open(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return Error{ErrorCode::io, path + ": " + std::strerror(errno)};
  if (!S_ISREG(status.st_mode)) return Error{ErrorCode::io, path + ": not a regular file"};
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (path.ends_with(kGzipSuffix)) {
    return std::unique_ptr<TextFile>(std::make_unique<GzipTextFile>(path, bytes, changeOf(status)));
  }
  return std::unique_ptr<TextFile>(std::make_unique<PlainTextFile>(path, bytes, changeOf(status)));
}

}  // namespace psd
