#include "common/http/http_stream.h"

namespace psd {
namespace {

constexpr std::string_view kOldVersion = "HTTP/1.0";

}  // namespace

kj::Promise<size_t> HttpStream::tryRead(void* buffer, size_t minBytes, size_t maxBytes) {
  if (ended_) return size_t{0};
  auto read = below_->tryRead(buffer, minBytes, maxBytes);
  if (lineRead_) return read;
  return read.then([this, begin = static_cast<const char*>(buffer)](size_t size) {
    detectVersion({begin, size});
    return size;
  });
}

void HttpStream::detectVersion(std::string_view bytes) {
  for (const char c : bytes) {
    if (lineRead_) return;
    if (c == '\r') continue;
    if (c != '\n') {
      if (lineEnd_.size() == kOldVersion.size()) lineEnd_.erase(0, 1);
      lineEnd_ += c;
    } else {
      lineRead_ = true;
      old_ = lineEnd_ == kOldVersion;
    }
  }
}

}  // namespace psd
