//! AWS Signature Version 4: the arithmetic of a signed request. It looks nothing up, and knows no time but what it is given.
//!
//! A path is taken as it was sent, with its `%` encoded once more, as services other than S3 do. Requests whose signature is in the
//! query, and bodies that are signed in chunks, are not supported.

use std::time::Duration;

use axum::http::{HeaderMap, header::AUTHORIZATION, request::Parts};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::civil;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use punctual::Timestamp;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::token::hex;

/// The scheme of `Authorization`.
pub(super) const SCHEME: &str = "AWS4-HMAC-SHA256";
/// How far the date of a request can be from now, either way.
pub(super) const SKEW_MAX: Duration = Duration::from_mins(15);
/// Most headers that one request signs.
const HEADERS_MAX: usize = 64;
/// Longest id of a key that is looked at, in bytes.
const KEY_ID_BYTES_MAX: usize = 128;
/// What a name or value of a query is encoded with.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The header with the hash of the body.
const CONTENT_HASH: &str = "x-amz-content-sha256";
/// The headers without which a signature says nothing: to which server, when, and which action.
const NEEDED: [&str; 3] = ["host", "x-amz-date", "x-amz-target"];

/// A signature as a request has it. Nothing of it is checked but its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// The id of the access key.
    pub(crate) key: String,
    /// The region that the client was configured with.
    pub(crate) region: String,
    /// `YYYYMMDDTHHMMSSZ`, as it is signed.
    date: String,
    service: String,
    /// The names of the signed headers, in lower case and in order.
    headers: Vec<String>,
    mac: Vec<u8>,
}

/// Why a signature has no valid form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

impl Signature {
    /// Returns whether a request is signed.
    pub(super) fn is_in(headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| value.split(' ').next() == Some(SCHEME))
    }

    /// Reads the signature of a request for `service`.
    pub(super) fn parse(headers: &HeaderMap, service: &str) -> Result<Self, Malformed> {
        let signature = Self::read(headers, service)?;
        match NEEDED.iter().find(|name| !signature.headers.iter().any(|signed| signed == *name)) {
            Some(name) => Err(Malformed(format!("the header {name} must be among the signed headers"))),
            None => Ok(signature),
        }
    }

    fn read(headers: &HeaderMap, service: &str) -> Result<Self, Malformed> {
        let wrong = |what: &str| Malformed(format!("the Authorization header {what}"));
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(wrong("is there more than once"));
        };
        let text = value.to_str().ok().and_then(|text| text.strip_prefix(SCHEME));
        let text = text.ok_or_else(|| wrong("has another scheme than AWS4-HMAC-SHA256"))?;
        let part = |name: &str| {
            let mut parts = text.split(',').filter_map(|part| part.trim().split_once('='));
            let found = parts.find(|(own, _)| *own == name).map(|(_, value)| value);
            found.ok_or_else(|| wrong(&format!("has no {name}")))
        };
        let credential: Vec<&str> = part("Credential")?.split('/').collect();
        let [key, day, region, scope, end] = credential[..] else {
            return Err(wrong("has a Credential that is not KEY/DAY/REGION/SERVICE/aws4_request"));
        };
        if end != "aws4_request" || scope != service || KEY_ID_BYTES_MAX < key.len() {
            return Err(wrong(&format!("has a Credential that is not for {service}/aws4_request")));
        }
        let date = headers.get("x-amz-date").and_then(|date| date.to_str().ok());
        let date = date.ok_or_else(|| Malformed("the header x-amz-date is missing".to_owned()))?;
        if !date.starts_with(day) || day.len() != 8 {
            return Err(wrong("has a Credential of another day than x-amz-date"));
        }
        let signed: Vec<String> = part("SignedHeaders")?.split(';').map(ToOwned::to_owned).collect();
        if HEADERS_MAX < signed.len() || !signed.is_sorted() {
            return Err(wrong("has SignedHeaders that are too many, or not in order"));
        }
        let given =
            unhex(part("Signature")?).ok_or_else(|| wrong("has a Signature that is not 64 hex digits"))?;
        Ok(Self {
            key: key.to_owned(),
            region: region.to_owned(),
            date: date.to_owned(),
            service: service.to_owned(),
            headers: signed,
            mac: given,
        })
    }

    /// Returns when the request was signed, as it says.
    pub(super) fn at(&self) -> Result<Timestamp, Malformed> {
        let read = civil::DateTime::strptime("%Y%m%dT%H%M%SZ", &self.date).ok();
        let zoned = read.and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC).ok());
        let ms = zoned.and_then(|at| u64::try_from(at.timestamp().as_millisecond()).ok());
        ms.and_then(|ms| Timestamp::from_ms(ms).ok())
            .ok_or_else(|| Malformed("the header x-amz-date is not of the form 20150830T123600Z".to_owned()))
    }

    /// Returns the hash of the body that the request says it has, in hex, if this is signed.
    pub(super) fn said_hash<'a>(&self, parts: &'a Parts) -> Option<&'a str> {
        let is_signed = self.headers.iter().any(|name| name == CONTENT_HASH);
        let mut values = parts.headers.get_all(CONTENT_HASH).iter().filter(|_| is_signed);
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        // Another text than a hash says that the body is not signed, and then the signature is refused with the body.
        value.to_str().ok().filter(|text| unhex(text).is_some())
    }

    /// Returns whether the request was signed with a secret. `path` is that of the request as it was sent, and `hash` the SHA-256 of its
    /// body in hex.
    pub(super) fn is_of(&self, secret: &str, parts: &Parts, path: &str, hash: &str) -> bool {
        let canonical = self.canonical(parts, path, hash);
        let day = &self.date[..8];
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let hash = hex(&Sha256::digest(canonical));
        let text = format!("{SCHEME}\n{}\n{scope}\n{hash}", self.date);
        let key = [day, &self.region, &self.service, "aws4_request"]
            .iter()
            .fold(format!("AWS4{secret}").into_bytes(), |key, part| mac(&key, part.as_bytes()));
        mac(&key, text.as_bytes()).ct_eq(&self.mac).into()
    }

    /// Returns the canonical form of the request.
    fn canonical(&self, parts: &Parts, path: &str, hash: &str) -> String {
        let mut text = format!("{}\n{}\n{}\n", parts.method, encoded_path(path), query(parts.uri.query()));
        for name in &self.headers {
            let values = parts.headers.get_all(name.as_str()).iter();
            let values = values.map(|value| spaced(&String::from_utf8_lossy(value.as_bytes())));
            for part in [name, ":", &values.collect::<Vec<_>>().join(","), "\n"] {
                text += part;
            }
        }
        text + "\n" + &self.headers.join(";") + "\n" + hash
    }
}

/// Returns the hash of a body, in hex.
pub(super) fn hash_of(body: &[u8]) -> String {
    hex(&Sha256::digest(body))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("invariant: HMAC takes a key of any length");
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

fn encoded_path(path: &str) -> String {
    if path.is_empty() { "/".to_owned() } else { path.replace('%', "%25") }
}

/// The parameters of a query, decoded, encoded in one way, and in order.
fn query(text: Option<&str>) -> String {
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let encoded = |text: &str| {
        let bytes: Vec<u8> = percent_decode_str(text).collect();
        utf8_percent_encode(&String::from_utf8_lossy(&bytes), QUERY).to_string()
    };
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// A value without spaces around it, and with one for several inside.
fn spaced(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// The test suite that AWS publishes: its requests, and their signatures.
#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    const FORM: &str = "application/x-www-form-urlencoded";

    /// A request of the suite: its line, its headers besides host and date, its body, and its signature.
    struct Vector {
        name: &'static str,
        method: &'static str,
        target: &'static str,
        headers: &'static [(&'static str, &'static str)],
        body: &'static str,
        signature: &'static str,
    }

    impl Vector {
        fn parts(&self) -> Parts {
            let mut request = Request::builder().method(self.method).uri(self.target);
            let own = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
            let mut names = Vec::new();
            for (name, value) in own.iter().chain(self.headers) {
                request = request.header(*name, *value);
                names.push(name.to_lowercase());
            }
            names.sort();
            names.dedup();
            let authorization = format!(
                "{SCHEME} Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders={}, Signature={}",
                names.join(";"),
                self.signature
            );
            request.header(AUTHORIZATION, authorization).body(()).unwrap().into_parts().0
        }

        fn is_right(&self, secret: &str, body: &str) -> bool {
            let parts = self.parts();
            let signature = Signature::read(&parts.headers, "service").unwrap();
            signature.is_of(secret, &parts, parts.uri.path(), &hash_of(body.as_bytes()))
        }
    }

    const VECTORS: [Vector; 13] = [
        Vector {
            name: "get-vanilla",
            method: "GET",
            target: "/",
            headers: &[],
            body: "",
            signature: "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        },
        Vector {
            name: "post-vanilla",
            method: "POST",
            target: "/",
            headers: &[],
            body: "",
            signature: "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        },
        Vector {
            name: "get-vanilla-query-order-key-case",
            method: "GET",
            target: "/?Param2=value2&Param1=value1",
            headers: &[],
            body: "",
            signature: "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        },
        Vector {
            name: "get-vanilla-empty-query-key",
            method: "GET",
            target: "/?Param1=value1",
            headers: &[],
            body: "",
            signature: "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        },
        Vector {
            name: "post-header-key-case",
            method: "POST",
            target: "/",
            headers: &[],
            body: "",
            signature: "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        },
        Vector {
            name: "post-header-key-sort",
            method: "POST",
            target: "/",
            headers: &[("My-Header1", "value1")],
            body: "",
            signature: "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        },
        Vector {
            name: "post-header-value-case",
            method: "POST",
            target: "/",
            headers: &[("My-Header1", "VALUE1")],
            body: "",
            signature: "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
        },
        Vector {
            name: "get-header-value-trim",
            method: "GET",
            target: "/",
            headers: &[("My-Header1", " value1"), ("My-Header2", " \"a   b   c\"")],
            body: "",
            signature: "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        },
        Vector {
            name: "get-header-value-order",
            method: "GET",
            target: "/",
            headers: &[
                ("My-Header1", "value4"),
                ("My-Header1", "value1"),
                ("My-Header1", "value3"),
                ("My-Header1", "value2"),
            ],
            body: "",
            signature: "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
        },
        Vector {
            name: "get-header-key-duplicate",
            method: "GET",
            target: "/",
            headers: &[("My-Header1", "value2"), ("My-Header1", "value2"), ("My-Header1", "value1")],
            body: "",
            signature: "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        },
        Vector {
            name: "get-unreserved",
            method: "GET",
            target: "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            headers: &[],
            body: "",
            signature: "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        },
        Vector {
            name: "post-x-www-form-urlencoded",
            method: "POST",
            target: "/",
            headers: &[("Content-Type", FORM)],
            body: "Param1=value1",
            signature: "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        },
        Vector {
            name: "post-x-www-form-urlencoded-parameters",
            method: "POST",
            target: "/",
            headers: &[("Content-Type", "application/x-www-form-urlencoded; charset=utf8")],
            body: "Param1=value1",
            signature: "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe",
        },
    ];

    #[test]
    fn the_published_requests_have_their_signatures() {
        for vector in &VECTORS {
            assert!(vector.is_right(SECRET, vector.body), "{}", vector.name);
            assert!(!vector.is_right("another", vector.body), "{}", vector.name);
            assert!(!vector.is_right(SECRET, "another"), "{}", vector.name);
        }
    }

    #[test]
    fn a_request_that_was_changed_is_not_the_signed_one() {
        let vector = &VECTORS[5];
        let parts = vector.parts();
        let signature = Signature::read(&parts.headers, "service").unwrap();
        let is_right = |parts: &Parts, path: &str| signature.is_of(SECRET, parts, path, &hash_of(b""));
        assert!(is_right(&parts, "/"));
        assert!(!is_right(&parts, "/other"));
        let mut changed = vector.parts();
        changed.headers.insert("my-header1", "value2".parse().unwrap());
        assert!(!is_right(&changed, "/"));
        let mut changed = vector.parts();
        changed.method = axum::http::Method::PUT;
        assert!(!is_right(&changed, "/"));
        let later = Signature { date: "20150830T123601Z".to_owned(), ..signature.clone() };
        assert!(!later.is_of(SECRET, &parts, "/", &hash_of(b"")));
        let elsewhere = Signature { region: "us-east-2".to_owned(), ..signature.clone() };
        assert!(!elsewhere.is_of(SECRET, &parts, "/", &hash_of(b"")));
    }

    #[test]
    fn host_date_and_action_must_be_signed() {
        let signed = |names: &str| {
            let authorization = format!(
                "{SCHEME} Credential=AKIDEXAMPLE/20150830/us-east-1/sqs/aws4_request,SignedHeaders={names},Signature={}",
                "0".repeat(64)
            );
            let request = Request::post("/").header("x-amz-date", "20150830T123600Z");
            let parts = request.header(AUTHORIZATION, authorization).body(()).unwrap().into_parts().0;
            Signature::parse(&parts.headers, "sqs").map_err(|Malformed(text)| text)
        };
        let right = signed("content-type;host;x-amz-date;x-amz-target").unwrap();
        assert_eq!((right.key.as_str(), right.region.as_str()), ("AKIDEXAMPLE", "us-east-1"));
        assert_eq!(right.at().unwrap().as_ms(), 1_440_938_160_000);
        for (names, missing) in [
            ("x-amz-date;x-amz-target", "host"),
            ("host;x-amz-target", "x-amz-date"),
            ("host;x-amz-date", "x-amz-target"),
        ] {
            assert!(signed(names).unwrap_err().contains(missing), "{names}");
        }
    }

    #[test]
    fn what_has_no_form_is_refused() {
        let good = format!(
            "{SCHEME} Credential=A/20150830/r/sqs/aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, Signature={}",
            "0".repeat(64)
        );
        let parse = |authorization: &str, date: Option<&str>| {
            let mut request = Request::post("/").header(AUTHORIZATION, authorization);
            if let Some(date) = date {
                request = request.header("x-amz-date", date);
            }
            let parts = request.body(()).unwrap().into_parts().0;
            Signature::parse(&parts.headers, "sqs").and_then(|signature| signature.at())
        };
        let date = Some("20150830T123600Z");
        assert!(parse(&good, date).is_ok());
        for (from, to) in [
            ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
            ("Credential", "Credentials"),
            ("/sqs/", "/s3/"),
            ("/sqs/", "/"),
            ("aws4_request", "aws5_request"),
            ("20150830", "20150831"),
            ("host;x-amz-date", "x-amz-date;host"),
            ("Signature=00", "Signature=0"),
            ("Signature=00", "Signature=0g"),
        ] {
            assert!(parse(&good.replace(from, to), date).is_err(), "{from} → {to}");
        }
        for date in [None, Some(""), Some("20150830"), Some("20150830T1236Z"), Some("20150830T126000Z")] {
            assert!(parse(&good, date).is_err(), "{date:?}");
        }
    }
}
