//! Certificates for tests, which nobody else trusts.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

const EXTENSIONS: &str = "
    [req]
    distinguished_name = dn
    [dn]
    [ca]
    basicConstraints = critical,CA:TRUE
    [here]
    basicConstraints = critical,CA:FALSE
    subjectAltName = IP:127.0.0.1
    [elsewhere]
    basicConstraints = critical,CA:FALSE
    subjectAltName = DNS:elsewhere.example
";

/// A folder with `ca.pem`, and `here.pem` and `elsewhere.pem`, which it signed; and their keys.
#[derive(Debug)]
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("extensions"), EXTENSIONS).expect("its folder takes files");
        let certificates = Self { folder };
        for name in ["ca", "here", "elsewhere"] {
            certificates.make(name);
        }
        certificates
    }

    fn make(&self, name: &str) {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-config", "extensions", "-extensions", name, "-subj", &format!("/CN={name}")]);
        command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem"), "-days", "2"]);
        if name != "ca" {
            command.args(["-CA", "ca.pem", "-CAkey", "ca.key"]);
        }
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().expect("these tests need openssl on the path: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Where one of the files is.
    pub(crate) fn file(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        path.display().to_string()
    }

    /// The options of a server on this machine, which listens for nothing else on a port. Later ones count.
    pub(super) fn options(&self, port: u16) -> Vec<String> {
        let mut options = ["--port", "0", "--tls-port", &port.to_string()].map(str::to_owned).to_vec();
        for (name, value) in [
            ("--tls-ca-cert-file", self.file("ca.pem")),
            ("--tls-cert-file", self.file("here.pem")),
            ("--tls-key-file", self.file("here.key")),
            ("--tls-auth-clients", "no".to_owned()),
        ] {
            options.extend([name.to_owned(), value]);
        }
        options
    }
}
