"""Unmodified boto3 against a server that speaks SQS. See `suite.py` for how it is run."""

import base64
import datetime
import hashlib
import json
import struct
import threading
import time

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from signed import Connection, Signer
from suite import ENDPOINT, KEY, REGION, SECRET, case, equal, fresh, run, until

# Refusals are looked at, so the client does not repeat calls. A long poll takes 20 s.
CONFIG = Config(retries={"total_max_attempts": 1}, read_timeout=40, connect_timeout=5, tcp_keepalive=True)


def client(key=KEY, secret=SECRET):
    return boto3.client(
        "sqs",
        endpoint_url=ENDPOINT,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=CONFIG,
    )


sqs = client()


def create(name, **attributes):
    """Creates a queue of a fresh name, and returns its URL."""
    suffix = ".fifo" if attributes.get("FifoQueue") == "true" else ""
    return sqs.create_queue(QueueName=fresh(name, suffix), Attributes=attributes)["QueueUrl"]


def receive(url, number=10, wait=0, **more):
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=number, WaitTimeSeconds=wait, **more)
    return answer.get("Messages", [])


def receive_one(url, wait=10, **more):
    """Receives one message, for which it waits."""
    found = receive(url, 1, wait, **more)
    equal(len(found), 1, f"messages received within {wait} s")
    return found[0]


def receive_all(url, number):
    """Receives and deletes until there were `number` messages, and checks that no more are there. Returns their bodies."""
    bodies = []
    while len(bodies) < number:
        found = receive(url, 10, 10)
        assert found, f"{len(bodies)} of {number} messages received, and then none within 10 s"
        for message in found:
            bodies.append(message["Body"])
            delete(url, message)
    equal([message["Body"] for message in receive(url, 10, 1)], [], "messages after the last one")
    return bodies


def delete(url, message):
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def show_now(url, message):
    """Makes a received message visible at once."""
    hide(url, message, 0)


def hide(url, message, seconds):
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds)


def counts(url):
    """Returns how many messages are visible, hidden and delayed."""
    names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return tuple(int(found[name]) for name in names)


def attribute(url, name):
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]


def refused(codes, call, *arguments, **parameters):
    """Calls, expects a refusal with one of these codes, and returns it."""
    codes = (codes,) if isinstance(codes, str) else codes
    try:
        answer = call(*arguments, **parameters)
    except ClientError as error:
        code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert code in codes, f"expected {' or '.join(codes)}, found {error}"
        assert 400 <= status < 500, f"{code} has the status {status}"
        assert error.response["Error"].get("Message"), f"{code} has no message"
        return error
    raise AssertionError(f"expected {' or '.join(codes)}, but the call was accepted: {answer}")


def md5_of_attributes(attributes):
    """The sum of a message's attributes as AWS documents it."""
    text = b""
    for name, value in sorted(attributes.items()):
        kind = value["DataType"]
        binary = kind.startswith("Binary")
        content = value["BinaryValue"] if binary else value["StringValue"].encode()
        for part in (name.encode(), kind.encode()):
            text += struct.pack(">I", len(part)) + part
        text += (b"\2" if binary else b"\1") + struct.pack(">I", len(content)) + content
    return hashlib.md5(text).hexdigest()


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


# Queues.


@case
def queues_are_created_found_and_listed():
    prefix = fresh("list")
    urls = [sqs.create_queue(QueueName=f"{prefix}-{i}")["QueueUrl"] for i in range(3)]
    assert urls[0].startswith(ENDPOINT + "/") and urls[0].endswith(f"/{prefix}-0"), f"the URL is {urls[0]}"
    equal(sqs.create_queue(QueueName=f"{prefix}-0")["QueueUrl"], urls[0], "the URL of a queue created again")
    equal(sqs.get_queue_url(QueueName=f"{prefix}-1")["QueueUrl"], urls[1], "the URL of a queue")
    equal(sorted(sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"]), urls, "queues listed")
    pages = list(sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}))
    equal([len(page.get("QueueUrls", [])) for page in pages], [2, 1], "sizes of pages of queues")
    equal(sorted(url for page in pages for url in page["QueueUrls"]), urls, "queues listed in pages")
    equal(sqs.list_queues(QueueNamePrefix=fresh("nothing")).get("QueueUrls", []), [], "queues of an unknown prefix")


@case
def attributes_are_kept_and_changed():
    name = fresh("attributes")
    given = {"VisibilityTimeout": "45", "DelaySeconds": "0", "MessageRetentionPeriod": "86400"}
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    equal({key: found.get(key) for key in given}, given, "attributes given at creation")
    assert found["QueueArn"].startswith("arn:aws:sqs:") and found["QueueArn"].endswith(f":{name}"), found["QueueArn"]
    assert abs(int(found["CreatedTimestamp"]) - time.time()) < 60, f"created at {found['CreatedTimestamp']}"
    for key in ("ApproximateNumberOfMessages", "MaximumMessageSize", "ReceiveMessageWaitTimeSeconds", "LastModifiedTimestamp"):
        assert found[key].isdigit(), f"{key} is {found[key]!r}"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7"})
    some = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", "MessageRetentionPeriod"])["Attributes"]
    equal(some, {"VisibilityTimeout": "7", "MessageRetentionPeriod": "86400"}, "attributes after a change")
    refused("QueueAlreadyExists", sqs.create_queue, QueueName=name, Attributes={"VisibilityTimeout": "8"})
    refused("InvalidAttributeName", sqs.set_queue_attributes, QueueUrl=url, Attributes={"Colour": "blue"})
    refused("InvalidAttributeValue", sqs.set_queue_attributes, QueueUrl=url, Attributes={"VisibilityTimeout": "x"})


@case
def an_unknown_queue_is_the_error_that_programs_catch():
    url = create("known").rsplit("/", 1)[0] + "/" + fresh("unknown")
    error = refused("AWS.SimpleQueueService.NonExistentQueue", sqs.get_queue_url, QueueName=fresh("unknown"))
    assert isinstance(error, sqs.exceptions.QueueDoesNotExist), f"its class is {type(error).__name__}"
    equal(error.response["Error"].get("Type"), "Sender", "whose fault it is")
    assert error.response["ResponseMetadata"].get("RequestId"), "the answer has no request id"
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.send_message, QueueUrl=url, MessageBody="x")
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.receive_message, QueueUrl=url)
    refused("InvalidParameterValue", sqs.create_queue, QueueName="no spaces")


@case
def tags_are_kept():
    url = create("tags")
    sqs.tag_queue(QueueUrl=url, Tags={"team": "mail", "tier": "1"})
    equal(sqs.list_queue_tags(QueueUrl=url).get("Tags"), {"team": "mail", "tier": "1"}, "tags")
    sqs.untag_queue(QueueUrl=url, TagKeys=["tier"])
    equal(sqs.list_queue_tags(QueueUrl=url).get("Tags"), {"team": "mail"}, "tags after one was removed")
    named = sqs.create_queue(QueueName=fresh("tags"), tags={"a": "b"})["QueueUrl"]
    equal(sqs.list_queue_tags(QueueUrl=named).get("Tags"), {"a": "b"}, "tags given at creation")


@case
def a_purge_removes_what_was_there():
    url = create("purge")
    for i in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=f"old {i}")
    sqs.send_message(QueueUrl=url, MessageBody="delayed", DelaySeconds=600)
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="new")
    equal(receive_all(url, 1), ["new"], "messages after a purge")
    equal(counts(url), (0, 0, 0), "counts after a purge")


@case
def a_deleted_queue_is_gone_and_can_be_made_again():
    name = fresh("delete")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="old")
    sqs.delete_queue(QueueUrl=url)
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.get_queue_url, QueueName=name)
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.send_message, QueueUrl=url, MessageBody="x")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="new")
    equal(receive_all(url, 1), ["new"], "messages of a queue made again")


# Messages.


@case
def a_message_arrives_with_all_its_parts():
    url = create("parts")
    body = "Grüße, 日本, 🎈 & <x>\n\t\"quoted\""
    attributes = {
        "kind": {"DataType": "String", "StringValue": "é"},
        "amount": {"DataType": "Number.int", "StringValue": "42"},
        "blob": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
        "user.id": {"DataType": "String", "StringValue": "7"},
    }
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody=body,
        MessageAttributes=attributes,
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": trace}},
    )
    equal(sent["MD5OfMessageBody"], md5(body), "the body's MD5")
    equal(sent["MD5OfMessageAttributes"], md5_of_attributes(attributes), "the attributes' MD5")
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    equal(sent["MD5OfMessageSystemAttributes"], md5_of_attributes(system), "the system attributes' MD5")

    found = receive_one(url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    equal(found["Body"], body, "the body")
    equal(found["MessageId"], sent["MessageId"], "the id")
    equal(found["MD5OfBody"], md5(body), "the body's MD5, received")
    equal(found["MD5OfMessageAttributes"], md5_of_attributes(attributes), "the attributes' MD5, received")
    equal(found["MessageAttributes"], attributes, "attributes")
    about = found["Attributes"]
    equal(about["ApproximateReceiveCount"], "1", "receives")
    equal(about["AWSTraceHeader"], trace, "the trace header")
    for name in ("SentTimestamp", "ApproximateFirstReceiveTimestamp"):
        assert abs(int(about[name]) / 1000 - time.time()) < 60, f"{name} is {about[name]}, in milliseconds"
    equal(about["SenderId"] != "", True, "there is a sender")

    # Only what is asked for: by name, by prefix, or nothing.
    show_now(url, found)
    found = receive_one(url, MessageAttributeNames=["user.*", "amount", "none"], MessageSystemAttributeNames=["ApproximateReceiveCount"])
    some = {name: attributes[name] for name in ("amount", "user.id")}
    equal(found["MessageAttributes"], some, "attributes asked for by name and prefix")
    equal(found["MD5OfMessageAttributes"], md5_of_attributes(some), "the MD5 of attributes asked for")
    equal(found["Attributes"], {"ApproximateReceiveCount": "2"}, "system attributes asked for")
    show_now(url, found)
    found = receive_one(url)
    equal(sorted(found), ["Body", "MD5OfBody", "MessageId", "ReceiptHandle"], "parts of a message when nothing is asked for")
    delete(url, found)
    equal(counts(url), (0, 0, 0), "counts after the deletion")


@case
def a_message_without_attributes_has_no_sum_of_them():
    url = create("plain")
    sent = sqs.send_message(QueueUrl=url, MessageBody="x")
    assert "MD5OfMessageAttributes" not in sent, sent
    assert "MD5OfMessageSystemAttributes" not in sent, sent
    assert "MD5OfMessageAttributes" not in receive_one(url, MessageAttributeNames=["All"])


@case
def long_messages_arrive_and_longer_ones_are_refused():
    url = create("long", MaximumMessageSize="262144")
    body = "".join(f"{i:08d}" for i in range(32_768))
    sqs.send_message(QueueUrl=url, MessageBody=body)
    equal(receive_all(url, 1), [body], "a body of 256 KiB")
    refused("InvalidParameterValue", sqs.send_message, QueueUrl=url, MessageBody=body + "x")
    refused(("InvalidParameterValue", "MissingParameter"), sqs.send_message, QueueUrl=url, MessageBody="")
    refused("InvalidMessageContents", sqs.send_message, QueueUrl=url, MessageBody="no \x0b here")
    equal(counts(url), (0, 0, 0), "counts after refusals")


@case
def a_batch_is_sent_but_for_a_bad_entry():
    url = create("batch")
    entries = [{"Id": f"e{i}", "MessageBody": f"m{i}"} for i in range(10)]
    entries[3]["DelaySeconds"] = -1
    entries[5]["MessageAttributes"] = {"n": {"DataType": "Number", "StringValue": "5"}}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    equal(sorted(entry["Id"] for entry in answer["Successful"]), [f"e{i}" for i in range(10) if i != 3], "entries sent")
    for entry in answer["Successful"]:
        equal(entry["MD5OfMessageBody"], md5("m" + entry["Id"][1:]), f"the MD5 of {entry['Id']}")
        equal("MD5OfMessageAttributes" in entry, entry["Id"] == "e5", f"a sum of attributes of {entry['Id']}")
    (failed,) = answer["Failed"]
    equal((failed["Id"], failed["Code"], failed["SenderFault"]), ("e3", "InvalidParameterValue", True), "the bad entry")
    equal(sorted(receive_all(url, 9)), [f"m{i}" for i in range(10) if i != 3], "messages received")


@case
def bad_batches_are_refused_as_a_whole():
    url = create("bad-batch")

    def send(entries):
        return sqs.send_message_batch(QueueUrl=url, Entries=entries)

    refused("AWS.SimpleQueueService.EmptyBatchRequest", send, [])
    eleven = [{"Id": str(i), "MessageBody": "x"} for i in range(11)]
    refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", send, eleven)
    refused("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", send, [{"Id": "a", "MessageBody": "x"}] * 2)
    refused("AWS.SimpleQueueService.InvalidBatchEntryId", send, [{"Id": "a b", "MessageBody": "x"}])
    long = "x" * 220_000
    refused("AWS.SimpleQueueService.BatchRequestTooLong", send, [{"Id": str(i), "MessageBody": long} for i in range(10)])
    equal(counts(url), (0, 0, 0), "counts after refusals")


@case
def batches_delete_and_change_visibility():
    url = create("batches")
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(i), "MessageBody": str(i)} for i in range(4)])
    found = []
    while len(found) < 4:
        more = receive(url, 10, 10, VisibilityTimeout=600)
        assert more, f"{len(found)} of 4 messages received"
        found += more
    equal(counts(url), (0, 4, 0), "visible, hidden and delayed messages")
    changes = [{"Id": str(i), "ReceiptHandle": found[i]["ReceiptHandle"], "VisibilityTimeout": 0} for i in range(2)]
    bad = {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 0}
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[*changes, bad])
    equal(sorted(entry["Id"] for entry in answer["Successful"]), ["0", "1"], "changed entries")
    equal([(entry["Id"], entry["Code"]) for entry in answer["Failed"]], [("bad", "ReceiptHandleIsInvalid")], "the bad entry")
    equal(counts(url), (2, 2, 0), "counts after the change")
    gone = [{"Id": str(i), "ReceiptHandle": found[i]["ReceiptHandle"]} for i in (2, 3)]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[*gone, {"Id": "bad", "ReceiptHandle": "x"}])
    equal(sorted(entry["Id"] for entry in answer["Successful"]), ["2", "3"], "deleted entries")
    equal([entry["Id"] for entry in answer["Failed"]], ["bad"], "the bad entry")
    equal(sorted(receive_all(url, 2)), sorted(message["Body"] for message in found[:2]), "messages that are left")


@case
def seven_days_of_delay_are_kept():
    url = create("delay")
    sqs.send_message(QueueUrl=url, MessageBody="next week", DelaySeconds=7 * 24 * 3600)
    equal(counts(url), (0, 0, 1), "visible, hidden and delayed messages")
    equal(receive(url, 10, 2), [], "messages received")


@case
def a_delay_of_the_queue_is_the_default():
    url = create("queue-delay", DelaySeconds="2")
    begin = time.monotonic()
    sqs.send_message(QueueUrl=url, MessageBody="late")
    sqs.send_message(QueueUrl=url, MessageBody="at once", DelaySeconds=0)
    message = receive_one(url, wait=0)
    equal(message["Body"], "at once", "the message that overrides the delay")
    equal(receive_one(url, wait=20)["Body"], "late", "the other message")
    took = time.monotonic() - begin
    assert 2 <= took < 6, f"a message with 2 s of delay was received after {took:.1f} s"


@case
def a_long_poll_is_woken_by_a_send():
    url = create("poll")
    other = client()
    began = threading.Event()
    other.meta.events.register("before-send.sqs.ReceiveMessage", lambda **_: began.set())
    answer = {}

    def poll():
        begin = time.monotonic()
        answer["messages"] = other.receive_message(QueueUrl=url, WaitTimeSeconds=20).get("Messages", [])
        answer["seconds"] = time.monotonic() - begin

    thread = threading.Thread(target=poll)
    thread.start()
    assert began.wait(10), "the poll did not begin"
    # The poll must last at least as long as this pause, or it did not wait for the message.
    time.sleep(1)
    sqs.send_message(QueueUrl=url, MessageBody="now")
    thread.join(30)
    equal([message["Body"] for message in answer["messages"]], ["now"], "messages of the poll")
    assert 1 <= answer["seconds"] < 5, f"the poll took {answer['seconds']:.1f} s: the message was sent after 1 s"


@case
def a_long_poll_of_an_empty_queue_ends_in_time():
    url = create("empty", ReceiveMessageWaitTimeSeconds="2")
    begin = time.monotonic()
    equal(sqs.receive_message(QueueUrl=url).get("Messages", []), [], "messages")
    took = time.monotonic() - begin
    assert 1.9 <= took < 5, f"a poll of the queue's 2 s took {took:.1f} s"
    begin = time.monotonic()
    receive(url, 1, 0)
    took = time.monotonic() - begin
    assert took < 1.5, f"a short poll took {took:.1f} s"
    for parameters in ({"WaitTimeSeconds": 21}, {"MaxNumberOfMessages": 11}, {"MaxNumberOfMessages": 0}):
        refused(("InvalidParameterValue", "ReadCountOutOfRange"), sqs.receive_message, QueueUrl=url, **parameters)


# Visibility.


@case
def a_message_that_is_not_deleted_is_visible_again():
    url = create("expiry")
    sqs.send_message(QueueUrl=url, MessageBody="again")
    first = receive_one(url, VisibilityTimeout=3)
    equal(receive(url), [], "messages while it is hidden")
    second = receive_one(url, wait=10, VisibilityTimeout=60, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    equal(second["MessageId"], first["MessageId"], "the id")
    equal(second["Attributes"]["ApproximateReceiveCount"], "2", "receives")
    assert second["ReceiptHandle"] != first["ReceiptHandle"], "both receives have one receipt"
    # A stale receipt: the deletion is accepted, and changes nothing.
    delete(url, first)
    equal(counts(url), (0, 1, 0), "counts after the deletion with a stale receipt")
    show_now(url, second)
    third = receive_one(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    equal(third["Attributes"]["ApproximateReceiveCount"], "3", "receives")
    delete(url, third)
    delete(url, third)
    equal(counts(url), (0, 0, 0), "counts after two deletions")


@case
def many_receives_lose_no_message():
    url = create("many")
    sqs.send_message(QueueUrl=url, MessageBody="kept")
    for i in range(1, 41):
        found = receive_one(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
        equal(found["Attributes"]["ApproximateReceiveCount"], str(i), "receives")
        show_now(url, found)
    equal(receive_all(url, 1), ["kept"], "the message after 40 receives")


@case
def visibility_is_made_longer_and_ended():
    url = create("visibility")
    sqs.send_message(QueueUrl=url, MessageBody="held")
    found = receive_one(url, VisibilityTimeout=2)
    hide(url, found, 60)
    equal(receive(url, 1, 4), [], "messages after the first timeout")
    show_now(url, found)
    begin = time.monotonic()
    found = receive_one(url)
    assert time.monotonic() - begin < 2, "a message was not visible at once"
    refused("InvalidParameterValue", hide, url, found, 43_201)
    refused("ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=url, ReceiptHandle="nothing")
    other = create("visibility-other")
    refused(("ReceiptHandleIsInvalid", "InvalidParameterValue"), delete, other, found)
    equal(counts(url), (0, 1, 0), "counts after a deletion through another queue")
    delete(url, found)
    refused(("InvalidParameterValue", "AWS.SimpleQueueService.MessageNotInflight"), show_now, url, found)


# FIFO queues and tenants.


@case
def a_group_is_received_in_order():
    url = create("order", FifoQueue="true")
    sent = []
    for i in range(20):
        group = "ab"[i % 2]
        answer = sqs.send_message(QueueUrl=url, MessageBody=f"{group}{i}", MessageGroupId=group, MessageDeduplicationId=str(i))
        sent.append(answer["SequenceNumber"])
    equal(sent, sorted(set(sent), key=int), "sequence numbers, which rise")
    # One message of a group is under way: the next ones of this group wait, those of the other one do not.
    first = receive_one(url, MessageSystemAttributeNames=["All"])
    about = first["Attributes"]
    equal((about["SequenceNumber"], about["MessageDeduplicationId"]), (sent[0], "0"), "what the first one is")
    equal((first["Body"], about["MessageGroupId"]), ("a0", "a"), "the first message and its group")
    second = receive_one(url)
    equal(second["Body"], "b1", "the second message, of the other group")
    equal(receive(url, 10, 1), [], "messages while one of each group is under way")
    # It comes back before those that follow.
    show_now(url, first)
    first = receive_one(url)
    equal(first["Body"], "a0", "the message of the group that is visible again")
    delete(url, first)
    delete(url, second)
    bodies = receive_all(url, 18)
    for group in "ab":
        equal([body for body in bodies if body[0] == group], [f"{group}{i}" for i in range(2, 20) if "ab"[i % 2] == group], f"group {group}")


@case
def a_batch_to_a_fifo_queue_keeps_its_order():
    url = create("fifo-batch", FifoQueue="true", ContentBasedDeduplication="true")
    for i in range(3):
        entries = [{"Id": str(j), "MessageBody": f"{i}-{j}", "MessageGroupId": "g"} for j in range(10)]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        equal(len(answer["Successful"]), 10, "entries sent")
    equal(receive_all(url, 30), [f"{i}-{j}" for i in range(3) for j in range(10)], "bodies in their order")


@case
def a_second_message_of_one_deduplication_id_is_dropped():
    url = create("dedupe", FifoQueue="true")
    message = {"QueueUrl": url, "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = sqs.send_message(MessageBody="one", **message)
    again = sqs.send_message(MessageBody="one", **message)
    equal(again["MessageId"], first["MessageId"], "the id of the second one")
    equal(receive_all(url, 1), ["one"], "messages received")
    # The five minutes begin with the first one, and its deletion does not end them.
    sqs.send_message(MessageBody="one", **message)
    equal(receive(url, 10, 1), [], "messages after the deletion")
    refused(("InvalidParameterValue", "MissingParameter"), sqs.send_message, QueueUrl=url, MessageGroupId="g", MessageBody="x")
    refused(("InvalidParameterValue", "MissingParameter"), sqs.send_message, QueueUrl=url, MessageDeduplicationId="e", MessageBody="x")
    by_content = create("content", FifoQueue="true", ContentBasedDeduplication="true")
    for body in ("one", "two", "one"):
        sqs.send_message(QueueUrl=by_content, MessageGroupId="g", MessageBody=body)
    equal(receive_all(by_content, 2), ["one", "two"], "messages received, deduplicated by content")


@case
def a_tenant_with_few_messages_does_not_wait_for_one_with_many():
    url = create("tenants")
    for i in range(20):
        entries = [{"Id": str(j), "MessageBody": f"large {i * 10 + j}", "MessageGroupId": "large"} for j in range(10)]
        equal(len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]), 10, "entries sent")
    for i in range(2):
        sqs.send_message(QueueUrl=url, MessageBody=f"small {i}", MessageGroupId="small")
    bodies = []
    while len(bodies) < 202:
        found = receive(url, 10, 10, MessageSystemAttributeNames=["MessageGroupId"])
        assert found, f"{len(bodies)} of 202 messages received"
        for message in found:
            equal(message["Attributes"]["MessageGroupId"], message["Body"].split()[0], "the group")
            bodies.append(message["Body"])
            delete(url, message)
    last = max(bodies.index(f"small {i}") for i in range(2))
    assert last < 20, f"the last message of the small tenant was number {last + 1} of 202"


# Dead letters.


@case
def a_message_received_too_often_becomes_a_dead_letter():
    dead = create("dead")
    arn = attribute(dead, "QueueArn")
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    url = create("redrive", RedrivePolicy=policy)
    equal(json.loads(attribute(url, "RedrivePolicy"))["deadLetterTargetArn"], arn, "the policy's queue")
    attributes = {f"n{i}": {"DataType": "String", "StringValue": str(i)} for i in range(10)}
    sqs.send_message(QueueUrl=url, MessageBody="poison", MessageAttributes=attributes)
    sqs.send_message(QueueUrl=url, MessageBody="expires")
    # One is given back twice, the other one expires twice.
    received = {"poison": 0, "expires": 0}
    while min(received.values()) < 2:
        for message in receive(url, 10, 10, VisibilityTimeout=3):
            received[message["Body"]] += 1
            if message["Body"] == "poison":
                show_now(url, message)
    # A look at the queue moves what is due.
    dead_letters = {}

    def both_moved():
        equal(receive(url, 10, 0), [], "messages of the queue")
        for message in receive(dead, 10, 0, MessageAttributeNames=["All"], VisibilityTimeout=600):
            dead_letters[message["Body"]] = message
        return len(dead_letters) == 2

    until("both messages are dead letters", both_moved)
    equal(received, {"poison": 2, "expires": 2}, "receives of each message")
    equal(dead_letters["poison"]["MessageAttributes"], attributes, "attributes of the dead letter")
    equal(counts(url), (0, 0, 0), "counts of the queue")
    for message in dead_letters.values():
        delete(dead, message)
    equal(counts(dead), (0, 0, 0), "counts of the dead-letter queue")


@case
def a_redrive_policy_must_name_a_queue():
    url = create("policy")
    missing = attribute(url, "QueueArn") + "-missing"
    for policy in ('{"deadLetterTargetArn": "' + missing + '", "maxReceiveCount": 2}', "{", '{"maxReceiveCount": 2}'):
        refused(
            ("InvalidParameterValue", "InvalidAttributeValue", "AWS.SimpleQueueService.NonExistentQueue"),
            sqs.set_queue_attributes,
            QueueUrl=url,
            Attributes={"RedrivePolicy": policy},
        )


# Signatures.


def raw():
    return Connection(ENDPOINT, KEY, SECRET, REGION, timeout=40)


def code_of(headers, text):
    """The code of an error as programs read it: the header comes first."""
    return headers.get("x-amzn-query-error", "").split(";")[0] or json.loads(text).get("__type", "").split("#")[-1]


def refusal(answer, status, codes):
    found, headers, text = answer
    equal((found, code_of(headers, text) in codes), (status, True), f"{text[:300]!r}, expected {' or '.join(codes)}")


@case
def signatures_are_those_of_botocore():
    at = datetime.datetime.now(datetime.timezone.utc)
    body = b'{"QueueName":"x"}'
    ours = Signer(ENDPOINT.split("//")[1], KEY, SECRET, REGION).headers("GetQueueUrl", body, at)
    names = ("Content-Type", "X-Amz-Target")
    request = AWSRequest("POST", ENDPOINT + "/", headers={name: ours[name.lower()] for name in names}, data=body)
    request.context["timestamp"] = ours["x-amz-date"]
    auth = SigV4Auth(Credentials(KEY, SECRET), "sqs", REGION)
    request.headers["X-Amz-Date"] = ours["x-amz-date"]
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    equal(ours["authorization"].rsplit("=", 1)[1], signature, "the signature")


@case
def a_wrong_secret_is_refused_and_locks_nobody_out():
    url = create("secret")
    wrong = client(secret=SECRET[:-1] + ("0" if SECRET[-1] != "0" else "1"))
    for _ in range(25):
        error = refused("SignatureDoesNotMatch", wrong.send_message, QueueUrl=url, MessageBody="x")
        equal(error.response["ResponseMetadata"]["HTTPStatusCode"], 403, "the status")
    sqs.send_message(QueueUrl=url, MessageBody="right")
    equal(receive_all(url, 1), ["right"], "messages received")


@case
def an_unknown_key_is_refused():
    for key in ("0123456789abcdef", "AKIAIOSFODNN7EXAMPLE"):
        error = refused("InvalidClientTokenId", client(key=key).list_queues)
        equal(error.response["ResponseMetadata"]["HTTPStatusCode"], 403, "the status")
    url = create("unknown-key")
    equal(counts(url), (0, 0, 0), "counts, asked with the right key")


@case
def a_request_of_another_time_is_refused():
    url = create("clock")
    body = json.dumps({"QueueUrl": url, "MessageBody": "x"}).encode()
    connection = raw()
    now = datetime.datetime.now(datetime.timezone.utc)
    for minutes in (-20, 20):
        at = now + datetime.timedelta(minutes=minutes)
        answer = connection.post(connection.signer.headers("SendMessage", body, at), body)
        expired = ("RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException")
        assert answer[0] in (400, 403), f"a request {minutes} min away has the status {answer[0]}"
        refusal(answer, answer[0], expired)
    answer = connection.post(connection.signer.headers("SendMessage", body, now - datetime.timedelta(minutes=4)), body)
    equal(answer[0], 200, f"the status of a request 4 min old: {answer[2][:300]!r}")
    equal(receive_all(url, 1), ["x"], "messages received")


@case
def a_request_sent_twice_is_two_messages_as_on_aws():
    url = create("replay")
    body = json.dumps({"QueueUrl": url, "MessageBody": "twice"}).encode()
    headers = raw().signer.headers("SendMessage", body)
    ids = []
    for _ in range(2):
        status, _, text = raw().post(headers, body)
        equal(status, 200, f"the status, of {text[:300]!r}")
        ids.append(json.loads(text)["MessageId"])
    equal(len(set(ids)), 2, "ids")
    equal(receive_all(url, 2), ["twice", "twice"], "messages received")


@case
def what_was_changed_after_signing_is_refused():
    url = create("tampered")
    connection = raw()
    body = json.dumps({"QueueUrl": url, "MessageBody": "pay 1"}).encode()
    headers = connection.signer.headers("SendMessage", body)
    refusal(connection.post(headers, body.replace(b"pay 1", b"pay 9")), 403, ("SignatureDoesNotMatch",))
    for name, value in (("x-amz-target", "AmazonSQS.PurgeQueue"), ("host", "example.com"), ("x-amz-date", "20200101T000000Z")):
        answer = connection.post({**headers, name: value}, body)
        assert answer[0] in (400, 403), f"a request with another {name} has the status {answer[0]}: {answer[2][:300]!r}"
    none = {name: value for name, value in headers.items() if name != "authorization"}
    refusal(connection.post(none, body), 403, ("MissingAuthenticationToken",))
    unsigned = {**headers, "authorization": headers["authorization"].replace("host;", "")}
    assert connection.post(unsigned, body)[0] in (400, 403), "a request that does not sign its host is accepted"
    for broken in ("AWS4-HMAC-SHA256", "Basic YTpi", headers["authorization"][:60], base64.b64encode(b"x" * 3000).decode()):
        status = connection.post({**headers, "authorization": broken}, body)[0]
        assert 400 <= status < 500, f"the authorization {broken[:40]!r} has the status {status}"
    equal(counts(url), (0, 0, 0), "counts after refusals")
    equal(connection.post(headers, body)[0], 200, "the status of what was signed")


@case
def broken_requests_are_refused_and_the_server_goes_on():
    connection = raw()
    for target, body in (
        ("SendMessage", b"{"),
        ("SendMessage", b"[]"),
        ("SendMessage", b'{"QueueUrl": 7}'),
        ("SendMessage", b"\xff\xfe"),
        ("SendMessage", b"[" * 100_000),
        ("Nothing", b"{}"),
        ("", b"{}"),
    ):
        status, headers, text = connection.post(connection.signer.headers(target, body), body)
        assert 400 <= status < 500, f"{target} with {body[:20]!r} has the status {status}"
        assert code_of(headers, text), f"{target} with {body[:20]!r} has no code: {text[:300]!r}"
    # Programs of before 2023 speak the Query protocol: the answer says so.
    form = b"Action=ListQueues&Version=2012-11-05"
    headers = {**connection.signer.headers("ListQueues", form), "content-type": "application/x-www-form-urlencoded"}
    del headers["x-amz-target"]
    status, _, text = connection.post(headers, form)
    assert 400 <= status < 500 and b"json" in text.lower(), f"the Query protocol gets {status} {text[:300]!r}"
    equal(type(sqs.list_queues().get("QueueUrls", [])), list, "what a good request gets after that")


if __name__ == "__main__":
    run()
