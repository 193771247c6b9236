#include "common/log/log_line.h"

namespace psd {
namespace {

thread_local const LogFields* fieldsOfThread = nullptr;

}  // namespace

LogFieldsScope::LogFieldsScope(const LogFields& fields) : outer_(fieldsOfThread) { fieldsOfThread = &fields; }

LogFieldsScope::~LogFieldsScope() { fieldsOfThread = outer_; }

const LogFields* LogFieldsScope::current() { return fieldsOfThread; }

}  // namespace psd
