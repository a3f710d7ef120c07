//! TLS of the server's own port.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use punctual::{Error, ErrorKind, Result};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

/// Largest file of certificates or of a key, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How often to look whether the files are others.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A certificate and its key, from files in the format PEM.
///
/// The files are read again when they change, so a renewed certificate needs no restart: connections that are made more than
/// 10 s later get it. Files that cannot be used are reported as a warning, and the earlier certificate stays.
///
/// TLS 1.2 and 1.3 are spoken. Clients need no certificate.
///
/// ```no_run
/// # fn main() -> punctual::Result<()> {
/// let tls = punctual_server::Tls::open("/etc/ssl/jobs.pem", "/etc/ssl/jobs.key")?;
/// # let _ = tls; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    current: Arc<Mutex<Current>>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// When the files were last changed, as it was when they were read.
    changed: Changed,
    looked: Instant,
}

/// When certificate and key were last changed; `None` if that cannot be told.
type Changed = [Option<SystemTime>; 2];

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its private key.
    ///
    /// # Errors
    /// `Invalid` for files that cannot be read, have other contents, or do not belong together.
    pub fn open(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self> {
        let (cert, key) = (cert.into(), key.into());
        let changed = changed(&cert, &key);
        let config = read(&cert, &key)?;
        let current = Current { config, changed, looked: Instant::now() };
        Ok(Self { cert, key, current: Arc::new(Mutex::new(current)) })
    }

    /// Returns what accepts the next connection. It reads the files if they have changed, which takes a moment every few seconds
    /// at most.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor_at(Instant::now())
    }

    fn acceptor_at(&self, now: Instant) -> TlsAcceptor {
        let mut current = lock(&self.current);
        if LOOK_EVERY <= now.saturating_duration_since(current.looked) {
            current.looked = now;
            let changed = changed(&self.cert, &self.key);
            if changed != current.changed {
                // They are not read again before they change again, or each look would warn.
                current.changed = changed;
                match read(&self.cert, &self.key) {
                    Ok(config) => {
                        current.config = config;
                        tracing::info!(target: "punctual", cert = %self.cert.display(), "uses the new certificate");
                    }
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(target: "punctual", error, "keeps the earlier certificate");
                    }
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&current.config))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

/// A panic while it was held leaves nothing half-written.
fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

fn changed(cert: &Path, key: &Path) -> Changed {
    [cert, key].map(|path| path.metadata().and_then(|file| file.modified()).ok())
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_slice_iter(&bytes(cert)?).collect::<std::result::Result<Vec<_>, _>>();
    let chain = chain.map_err(|e| unusable(cert, "a certificate in it cannot be read").with_source(e))?;
    if chain.is_empty() {
        return Err(unusable(cert, "it has no certificate"));
    }
    let own_key = PrivateKeyDer::from_pem_slice(&bytes(key)?)
        .map_err(|e| unusable(key, "it has no private key").with_source(e))?;
    // The provider is named, so that others in the process do not matter.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("invariant: the provider has all that these versions need")
        .with_no_client_auth()
        .with_single_cert(chain, own_key)
        .map_err(|e| {
            unusable(key, &format!("it does not belong to the certificate {}", cert.display())).with_source(e)
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn bytes(path: &Path) -> Result<Vec<u8>> {
    let bytes = path.metadata().and_then(|file| {
        if FILE_BYTES_MAX < file.len() {
            let text = format!("{} bytes are over the limit of {FILE_BYTES_MAX}", file.len());
            return Err(io::Error::other(text));
        }
        std::fs::read(path)
    });
    bytes.map_err(|e| unusable(path, &e.to_string()))
}

fn unusable(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("could not use the file {} for TLS: {why}", path.display()))
        .with_hint(
            "name a chain of certificates and its private key, both as PEM: --tls-cert FILE --tls-key FILE",
        )
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// Makes a certificate and its key in a folder.
    fn make(folder: &Path, name: &str) {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]);
        command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
        let output = command.current_dir(folder).output();
        let output = output.expect("this test needs openssl on the path: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn changed_files_are_read_again_and_broken_ones_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(folder.path(), "one");
        make(folder.path(), "two");
        fs::copy(at("one.pem"), at("cert")).unwrap();
        fs::copy(at("one.key"), at("key")).unwrap();
        let tls = Tls::open(at("cert"), at("key")).unwrap();
        let mut now = Instant::now();
        let mut next = |tls: &Tls| {
            now += LOOK_EVERY;
            Arc::clone(tls.acceptor_at(now).config())
        };
        let first = next(&tls);
        assert!(Arc::ptr_eq(&first, &next(&tls)), "nothing has changed");
        // The certificate is renewed first, and its key a moment later.
        fs::copy(at("two.pem"), at("cert")).unwrap();
        assert!(Arc::ptr_eq(&first, &next(&tls)), "they do not belong together");
        fs::copy(at("two.key"), at("key")).unwrap();
        let second = next(&tls);
        assert!(!Arc::ptr_eq(&first, &second), "both are new");
        fs::remove_file(at("cert")).unwrap();
        assert!(Arc::ptr_eq(&second, &next(&tls)), "there is none");
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(folder.path(), "one");
        make(folder.path(), "two");
        fs::write(at("text"), "no certificate").unwrap();
        fs::File::create(at("huge")).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        for (cert, key, file, why) in [
            ("missing", "one.key", "missing", "No such file"),
            ("text", "one.key", "text", "it has no certificate"),
            ("huge", "one.key", "huge", "over the limit"),
            ("one.pem", "one.pem", "one.pem", "it has no private key"),
            ("one.pem", "two.key", "two.key", "it does not belong to the certificate"),
        ] {
            let error = Tls::open(at(cert), at(key)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains(&format!("/{file} ")) && text.contains(why), "{text}");
        }
    }
}
