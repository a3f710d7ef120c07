"""Requests to SQS that are signed here and sent as they are, over one connection: to send bytes twice or changed, and for speed.

Signatures follow AWS Signature Version 4. `boto3_case.py` compares one with botocore's.
"""

import datetime
import hashlib
import hmac
import http.client
import json
import urllib.parse

SERVICE = "sqs"
# The largest answer that is read, in bytes: ten messages of 1 MiB, each byte escaped.
ANSWER_BYTES_MAX = 64 * 1024 * 1024


def _mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    """Signs requests of one key for one host."""

    def __init__(self, host, key, secret, region):
        self.host, self.key, self.secret, self.region = host, key, secret, region
        self._day, self._derived = None, None

    def _derive(self, day):
        if self._day != day:
            derived = ("AWS4" + self.secret).encode()
            for part in (day, self.region, SERVICE, "aws4_request"):
                derived = _mac(derived, part)
            self._day, self._derived = day, derived
        return self._derived

    def headers(self, target, body, at=None):
        """Returns the headers of a request to `/`. `at` is the time it claims to be of, in UTC (default: now)."""
        at = at or datetime.datetime.now(datetime.timezone.utc)
        stamp = at.strftime("%Y%m%dT%H%M%SZ")
        day = stamp[:8]
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "host": self.host,
            "x-amz-date": stamp,
            "x-amz-target": f"AmazonSQS.{target}",
        }
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{day}/{self.region}/{SERVICE}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.new(self._derive(day), text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status, code, message):
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code = status, code


class Connection:
    """One connection to a server. After an error of the network, the next call connects again."""

    def __init__(self, endpoint, key, secret, region, timeout):
        address = urllib.parse.urlsplit(endpoint)
        self.signer = Signer(address.netloc, key, secret, region)
        self._http = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)

    def close(self):
        self._http.close()

    def post(self, headers, body):
        """Sends these headers and bytes as they are. Returns the status, the headers and the body of the answer."""
        try:
            self._http.putrequest("POST", "/", skip_host=True, skip_accept_encoding=True)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self._http.putheader(name, value)
            self._http.endheaders(body)
            answer = self._http.getresponse()
            text = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException):
            self._http.close()
            raise
        return answer.status, answer.headers, text

    def call(self, target, **parameters):
        """Calls an action and returns its answer. Raises `Refused`, OSError or HTTPException."""
        body = json.dumps(parameters).encode()
        status, headers, text = self.post(self.signer.headers(target, body), body)
        if status != 200:
            code = headers.get("x-amzn-query-error", "").split(";")[0]
            raise Refused(status, code, text[:300].decode("utf-8", "replace"))
        return json.loads(text) if text else {}
