#include "trainer/loop/tensorboard.h"

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include "common/checksum/crc32c.h"
#include "common/os/host.h"

namespace psd {
namespace {

constexpr double kFlushEverySeconds = 1;

double secondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

static_assert(std::endian::native == std::endian::little, "records are little-endian");

template <class T>
std::string bytesOf(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A protobuf message, field by field.
class ProtoMessage {
 public:
  ProtoMessage& fixed(int field, double value) { return tag(field, kFixed64).append(bytesOf(value)); }
  ProtoMessage& fixed(int field, float value) { return tag(field, kFixed32).append(bytesOf(value)); }
  ProtoMessage& integer(int field, uint64_t value) { return tag(field, kVarint).varint(value); }
  ProtoMessage& text(int field, std::string_view value) {
    return tag(field, kLengthDelimited).varint(value.size()).append(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr uint64_t kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

  ProtoMessage& tag(int field, uint64_t kind) { return varint(static_cast<uint64_t>(field) << 3 | kind); }
  ProtoMessage& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  ProtoMessage& append(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }

  std::string bytes_;
};

/// The checksum of TFRecords.
uint32_t maskedCrc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace

Status TensorboardWriter::checkFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return {ErrorCode::io, folder + ": cannot be created: " + error.message()};
  if (access(folder.c_str(), W_OK) == 0) return {};
  return {ErrorCode::io, folder + ": cannot be written: " + std::strerror(errno)};
}

Result<std::unique_ptr<TensorboardWriter>> TensorboardWriter::create(const std::string& folder) {
  PSD_RETURN_IF_ERROR(checkFolder(folder));
  errno = 0;
  std::unique_ptr<TensorboardWriter> writer(
      new TensorboardWriter(fmt::format("{}/events.out.tfevents.{}.{}.{}.psd", folder,
                                        static_cast<uint64_t>(secondsSince1970()), hostName(), getpid())));
  if (!writer->file_)
    return Error{ErrorCode::io, writer->path_ + ": cannot be written: " + std::strerror(errno)};
  return writer;
}

TensorboardWriter::TensorboardWriter(std::string path)
    : path_(std::move(path)), file_(path_, std::ios::binary) {
  record(ProtoMessage().fixed(1, secondsSince1970()).text(3, "brain.Event:2").bytes());
}

void TensorboardWriter::onStep(const StepReport& report) {
  add(report.step, {{"train/loss", report.loss},
                    {"train/samples_per_s", report.samples / report.seconds()},
                    {"psd/staleness", static_cast<double>(report.staleness)},
                    {"psd/pull_s", report.pullSeconds}});
}

void TensorboardWriter::add(uint64_t step, const std::vector<Scalar>& scalars) {
  ProtoMessage summary;
  for (const auto& [tag, value] : scalars) {
    summary.text(1, ProtoMessage().text(1, tag).fixed(2, static_cast<float>(value)).bytes());
  }
  const double now = secondsSince1970();
  record(ProtoMessage().fixed(1, now).integer(2, step).text(5, summary.bytes()).bytes());
  if (now - flushed_ < kFlushEverySeconds) return;
  file_.flush();  // visible in TensorBoard during training
  flushed_ = now;
}

void TensorboardWriter::record(const std::string& event) {
  const std::string length = bytesOf(static_cast<uint64_t>(event.size()));
  file_ << length << bytesOf(maskedCrc(length)) << event << bytesOf(maskedCrc(event));
}

Status TensorboardWriter::finish() {
  file_.close();
  if (file_) return {};
  return {ErrorCode::io, path_ + ": not every event could be written; is the disk full?"};
}

}  // namespace psd
