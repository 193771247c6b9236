#pragma once

#include <openssl/opensslv.h>

// The major version of OpenSSL that psd is built for, as text, by which the system's loader finds its
// libraries.
#define PSD_OPENSSL_TEXT_INNER(version) #version
#define PSD_OPENSSL_TEXT(version) PSD_OPENSSL_TEXT_INNER(version)
#define PSD_OPENSSL_VERSION PSD_OPENSSL_TEXT(OPENSSL_VERSION_MAJOR)
