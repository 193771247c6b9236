#pragma once

#include <openssl/opensslv.h>

// The major version of OpenSSL that psd is built for, as text, which is part of the libraries' file names.
#define PSD_OPENSSL_TEXT_INNER(version) #version
#define PSD_OPENSSL_TEXT(version) PSD_OPENSSL_TEXT_INNER(version)
#define PSD_OPENSSL_VERSION PSD_OPENSSL_TEXT(OPENSSL_VERSION_MAJOR)
