"""Certificates for tests, created by openssl's command line: an authority and certificates that it signs."""

import subprocess


class Authority:
    """A certificate authority in a folder; `path` is its certificate."""

    def __init__(self, folder, name="authority"):
        self.folder = folder
        self.path = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self._key(self.key)
        self._openssl("req", "-x509", "-new", "-key", self.key, "-days", "30", "-subj", f"/CN=psd test {name}", "-out", self.path)

    def sign(self, name, common_name=None, alternatives="", expired=False, days=30):
        """Creates a certificate and its key, replacing those of the same name. `days`: validity of the certificate."""
        certificate, key, request, extensions = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        self._key(key)
        self._openssl("req", "-new", "-key", key, "-subj", f"/CN={common_name or name}", "-out", request)
        extensions.write_text(f"subjectAltName={alternatives}\n" if alternatives else "")
        signed = ["x509", "-req", "-in", request, "-CA", self.path, "-CAkey", self.key, "-CAcreateserial", "-extfile", extensions]
        if not expired:
            self._openssl(*signed, "-days", str(days), "-out", certificate)
        else:
            self._sign_for_the_past(request, extensions, certificate)
        return certificate, key

    def _sign_for_the_past(self, request, extensions, certificate):
        database, settings = self.folder / "index.txt", self.folder / "ca.cnf"
        database.write_text("")
        (self.folder / "index.txt.attr").write_text("unique_subject = no\n")
        (self.folder / "serial").write_text("1000\n")
        settings.write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={database}\nserial={self.folder / 'serial'}\n"
                            f"new_certs_dir={self.folder}\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
        self._openssl("ca", "-batch", "-config", settings, "-in", request, "-cert", self.path, "-keyfile", self.key,
                      "-extfile", extensions, "-startdate", "200101000000Z", "-enddate", "200102000000Z", "-out", certificate,
                      "-notext")

    def other_kind_of_key(self, name):
        """An RSA key; all others use elliptic curves."""
        path = self.folder / f"{name}.key"
        self._openssl("genrsa", "-out", path, "2048")
        return path

    def _key(self, path):
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)

    @staticmethod
    def _openssl(*arguments):
        done = subprocess.run(["openssl", *(str(argument) for argument in arguments)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60, check=False)
        if done.returncode != 0:
            raise AssertionError(f"openssl {arguments}: {done.stderr}")
