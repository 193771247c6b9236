#pragma once
// Declarations that torch's ProcessGroupGloo.hpp needs to compile: the PyPI wheel contains gloo in
// libtorch_cpu.so but not its headers. psd neither calls these functions nor depends on the layout of these
// classes: c10d's classes hold pointers to them only.
#include <chrono>
#include <memory>
#include <string>
#include <vector>
namespace gloo {
class Context {
 public:
  std::chrono::milliseconds getTimeout() const;
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
namespace rendezvous {
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous
}  // namespace gloo
