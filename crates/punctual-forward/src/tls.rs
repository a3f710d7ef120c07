//! Certificates of TLS connections, in files: trusted authorities, and client certificates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use punctual::{Error, Result};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

/// The largest file of certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The files of certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// Authorities that are trusted in addition to those of the system; for NATS, instead of them.
    pub(crate) ca: Option<PathBuf>,
    /// A client certificate with its chain, and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// The certificates, read and checked.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) files: Files,
    /// As PEM.
    pub(crate) ca: Option<String>,
    /// A certificate and its key, as PEM.
    pub(crate) client: Option<(String, String)>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be read or has other contents, and for a key that does not match its
    /// certificate.
    pub(crate) fn load(files: Files) -> Result<Self> {
        let ca = files.ca.as_deref().map(|file| {
            let pem = text(file)?;
            certificates(file, &pem).map(|_| pem)
        });
        let client = files.client.as_ref().map(|(cert, key)| pair(cert, key));
        let (ca, client) = (ca.transpose()?, client.transpose()?);
        Ok(Self { files, ca, client })
    }

    /// Returns whether no certificate was given.
    pub(crate) const fn is_empty(&self) -> bool {
        self.ca.is_none() && self.client.is_none()
    }
}

/// Reads a certificate and its key.
fn pair(cert: &Path, key: &Path) -> Result<(String, String)> {
    let (chain, secret) = (text(cert)?, text(key)?);
    let certificates = certificates(cert, &chain)?;
    // The cause is not reported: it may show a part of the file.
    let private = PrivateKeyDer::from_pem_slice(secret.as_bytes()).map_err(|_| {
        Error::invalid(format!("{} holds no private key in PEM", key.display()))
            .with_hint("write an unencrypted key, which begins with -----BEGIN PRIVATE KEY-----")
    })?;
    CertifiedKey::from_der(certificates, private, &ring::default_provider()).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        Error::invalid(format!("the key in {key} does not belong to the certificate in {cert}"))
            .with_hint(
                "name the certificate and the key that were made together, the certificate first in its file",
            )
            .with_source(error)
    })?;
    Ok((chain, secret))
}

fn certificates(file: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    read.ok().filter(|read| !read.is_empty()).ok_or_else(|| {
        Error::invalid(format!("{} holds no certificate in PEM", file.display()))
            .with_hint("write a certificate, which begins with -----BEGIN CERTIFICATE-----")
    })
}

fn text(file: &Path) -> Result<String> {
    let read = fs::metadata(file).and_then(|about| {
        if FILE_BYTES_MAX < about.len() {
            return Err(std::io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        fs::read_to_string(file)
    });
    read.map_err(|error| {
        Error::invalid(format!("could not read {}", file.display()))
            .with_hint("check the path, and that this user may read the file")
            .with_source(error)
    })
}
