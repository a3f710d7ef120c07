//! Signatures of the [Standard Webhooks](https://www.standardwebhooks.com) format. With the secret, a receiver can
//! verify the sender, the time and the content of a request.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use punctual::{Error, Result};
use sha2::Sha256;

/// The prefix of secrets.
const PREFIX: &str = "whsec_";
/// The shortest key, in bytes.
const KEY_BYTES_MIN: usize = 24;
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 64;

/// A key that is shared with the receiver. It is never shown.
pub(super) struct Secret(Hmac<Sha256>);

impl Secret {
    /// Parses `whsec_` and a key in base64.
    ///
    /// # Errors
    /// `Invalid` for any other text, and for keys of fewer than 24 or more than 64 bytes. The error does not contain
    /// the secret.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let key = text.strip_prefix(PREFIX).and_then(|key| BASE64.decode(key).ok());
        let hint = "make one by: echo whsec_$(openssl rand -base64 32)";
        let Some(key) = key else {
            return Err(Error::invalid(format!("a secret is {PREFIX} and a key in base64")).with_hint(hint));
        };
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            let text = format!(
                "the key of a secret has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, and this one {}",
                key.len()
            );
            return Err(Error::invalid(text).with_hint(hint));
        }
        let keyed = Hmac::new_from_slice(&key);
        Ok(Self(keyed.map_err(|error| Error::invalid("the secret is no key").with_source(error))?))
    }

    /// Returns the signature of a body that is sent with an id at a time (seconds since 1970).
    pub(super) fn sign(&self, id: &str, at_s: u64, body: &[u8]) -> String {
        let mut signed = self.0.clone();
        signed.update(format!("{id}.{at_s}.").as_bytes());
        signed.update(body);
        format!("v1,{}", BASE64.encode(signed.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_is_signed_as_there() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused_and_not_shown() {
        let of = |bytes: usize| format!("{PREFIX}{}", BASE64.encode(vec![7; bytes]));
        for good in [of(KEY_BYTES_MIN), of(KEY_BYTES_MAX)] {
            assert!(Secret::parse(&good).is_ok());
        }
        for bad in
            [of(KEY_BYTES_MIN - 1), of(KEY_BYTES_MAX + 1), "whsec_%%%".to_owned(), BASE64.encode([7; 32])]
        {
            let error = Secret::parse(&bad).err().unwrap();
            assert!(!format!("{error:?}").contains(&bad), "{error:?}");
        }
    }
}
