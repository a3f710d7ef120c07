//! Queues: making, listing, describing and deleting them.

use punctual_server::{DashboardOptions, token::Role};
use serde_json::{Value, json};

use crate::site::{HOST, Site, send, url};

#[tokio::test]
async fn a_queue_is_made_found_listed_and_described() {
    let site = Site::new().await;
    let attributes = json!({"VisibilityTimeout": "7", "DelaySeconds": "3"});
    let made = site.ask("CreateQueue", json!({"QueueName": "q", "Attributes": attributes})).await.ok();
    assert_eq!(made, json!({"QueueUrl": url("q")}));
    assert_eq!(site.ask("GetQueueUrl", json!({"QueueName": "q"})).await.ok(), made);
    site.ask("CreateQueue", json!({"QueueName": "r"})).await.ok();
    site.ask("CreateQueue", json!({"QueueName": "other"})).await.ok();
    let list = async |body: Value| site.ask("ListQueues", body).await.ok();
    assert_eq!(list(json!({})).await, json!({"QueueUrls": [url("other"), url("q"), url("r")]}));
    assert_eq!(list(json!({"QueueNamePrefix": "o"})).await, json!({"QueueUrls": [url("other")]}));
    let page = list(json!({"MaxResults": 2})).await;
    assert_eq!(page["QueueUrls"], json!([url("other"), url("q")]));
    let rest = list(json!({"MaxResults": 2, "NextToken": page["NextToken"]})).await;
    assert_eq!(rest, json!({"QueueUrls": [url("r")]}));
    let all =
        site.ask("GetQueueAttributes", json!({"QueueUrl": url("q"), "AttributeNames": ["All"]})).await.ok();
    let all = &all["Attributes"];
    for (name, value) in [
        ("VisibilityTimeout", "7"),
        ("DelaySeconds", "3"),
        ("MaximumMessageSize", "1048576"),
        ("MessageRetentionPeriod", "345600"),
        ("ReceiveMessageWaitTimeSeconds", "0"),
        ("QueueArn", "arn:aws:sqs:eu-test-1:000000000000:q"),
        ("ApproximateNumberOfMessages", "0"),
        ("ApproximateNumberOfMessagesDelayed", "0"),
        ("ApproximateNumberOfMessagesNotVisible", "0"),
    ] {
        assert_eq!(all[name], value, "{name}");
    }
    let set = json!({"QueueUrl": url("q"), "Attributes": {"VisibilityTimeout": "8"}});
    site.ask("SetQueueAttributes", set).await.ok();
    let one = json!({"QueueUrl": url("q"), "AttributeNames": ["VisibilityTimeout"]});
    let one = site.ask("GetQueueAttributes", one).await.ok();
    assert_eq!(one, json!({"Attributes": {"VisibilityTimeout": "8"}}));
    let none =
        site.ask("GetQueueAttributes", json!({"QueueUrl": url("q"), "AttributeNames": ["Colour"]})).await;
    assert_eq!(none.code(), "InvalidAttributeName");
}

/// Both the name and the attribute say so, as in SQS: one of them may be a mistake.
#[tokio::test]
async fn a_fifo_queue_is_made_by_name_and_attribute() {
    let site = Site::new().await;
    for (name, attributes) in [
        ("q.fifo", json!({})),
        ("q.fifo", json!({"ContentBasedDeduplication": "true"})),
        ("q.fifo", json!({"FifoQueue": "false"})),
        ("q", json!({"FifoQueue": "true"})),
    ] {
        let made = site.ask("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await;
        assert_eq!(
            (made.status, made.code().as_str()),
            (400, "InvalidParameterValue"),
            "{name} {attributes}"
        );
    }
    let attributes =
        json!({"FifoQueue": "true", "DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"});
    site.ask("CreateQueue", json!({"QueueName": "q.fifo", "Attributes": attributes})).await.ok();
}

#[tokio::test]
async fn a_queue_that_is_there_is_made_again_only_as_it_is() {
    let site = Site::with_queue().await;
    let make = async |attributes: Value| {
        site.ask("CreateQueue", json!({"QueueName": "q", "Attributes": attributes})).await
    };
    make(json!({})).await.ok();
    make(json!({"VisibilityTimeout": "30"})).await.ok();
    let other = make(json!({"VisibilityTimeout": "31"})).await;
    assert_eq!((other.status, other.code().as_str()), (400, "QueueAlreadyExists"));
    assert_eq!(other.json()["__type"], "com.amazonaws.sqs#QueueNameExists");
}

#[tokio::test]
async fn a_queue_that_is_not_there_has_its_fault() {
    let site = Site::new().await;
    for (action, more) in [
        ("DeleteQueue", json!({})),
        ("GetQueueAttributes", json!({})),
        ("SetQueueAttributes", json!({})),
        ("PurgeQueue", json!({})),
        ("SendMessage", json!({"MessageBody": "x"})),
        ("SendMessageBatch", json!({"Entries": [{"Id": "a", "MessageBody": "x"}]})),
        ("ReceiveMessage", json!({})),
        ("DeleteMessage", json!({"ReceiptHandle": "x"})),
        ("DeleteMessageBatch", json!({})),
        ("ChangeMessageVisibility", json!({"ReceiptHandle": "x", "VisibilityTimeout": 1})),
        ("ChangeMessageVisibilityBatch", json!({})),
        ("TagQueue", json!({})),
        ("UntagQueue", json!({})),
        ("ListQueueTags", json!({})),
    ] {
        let mut body = more;
        // Names that no queue can have are not there, either.
        for name in ["q", "$topics", ""] {
            body["QueueUrl"] = json!(url(name));
            let answer = site.ask(action, body.clone()).await;
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (400, "AWS.SimpleQueueService.NonExistentQueue"),
                "{action}"
            );
            assert_eq!(answer.json()["__type"], "com.amazonaws.sqs#QueueDoesNotExist");
        }
    }
    let answer = site.ask("GetQueueUrl", json!({"QueueName": "q"})).await;
    assert_eq!(answer.code(), "AWS.SimpleQueueService.NonExistentQueue");
    // It must be made, even if the store has a queue of the name.
    assert_eq!(site.ask("SendMessage", json!({"QueueUrl": url("$x"), "MessageBody": "x"})).await.status, 400);
}

#[tokio::test]
async fn a_listing_for_a_key_of_some_queues_says_nothing_of_others() {
    let site = Site::new().await;
    for n in 0..12 {
        site.ask("CreateQueue", json!({"QueueName": format!("a{n:02}")})).await.ok();
    }
    for name in ["x1", "x2", "y"] {
        site.ask("CreateQueue", json!({"QueueName": name})).await.ok();
    }
    let own = site.key(Role::Read, Some(&["y", "x2", "x0", "x1", "$none"])).await;
    let list = async |body: Value| site.ask_as(&own, "ListQueues", body).await.ok();
    assert_eq!(list(json!({})).await, json!({"QueueUrls": [url("x1"), url("x2"), url("y")]}));
    let page = list(json!({"MaxResults": 1})).await;
    assert_eq!(page, json!({"QueueUrls": [url("x1")], "NextToken": "x1"}));
    let page = list(json!({"MaxResults": 1, "NextToken": "x1"})).await;
    assert_eq!(page, json!({"QueueUrls": [url("x2")], "NextToken": "x2"}));
    assert_eq!(list(json!({"MaxResults": 1, "NextToken": "x2"})).await, json!({"QueueUrls": [url("y")]}));
    let page = list(json!({"QueueNamePrefix": "x", "MaxResults": 1, "NextToken": "x1"})).await;
    assert_eq!(page, json!({"QueueUrls": [url("x2")]}));
}

#[tokio::test]
async fn tags_are_set_and_taken_away() {
    let site = Site::new().await;
    site.ask("CreateQueue", json!({"QueueName": "q", "tags": {"team": "a"}})).await.ok();
    site.ask("TagQueue", json!({"QueueUrl": url("q"), "Tags": {"team": "b", "env": "test"}})).await.ok();
    site.ask("UntagQueue", json!({"QueueUrl": url("q"), "TagKeys": ["env", "none"]})).await.ok();
    let tags = site.ask("ListQueueTags", json!({"QueueUrl": url("q")})).await.ok();
    assert_eq!(tags, json!({"Tags": {"team": "b"}}));
    let many: serde_json::Map<String, Value> = (0..51).map(|n| (n.to_string(), json!(""))).collect();
    let answer = site.ask("TagQueue", json!({"QueueUrl": url("q"), "Tags": many})).await;
    assert_eq!(answer.code(), "InvalidParameterValue");
}

#[tokio::test]
async fn addresses_are_those_under_which_the_client_came() {
    let site =
        Site::with(DashboardOptions { base_path: "/jobs".to_owned(), ..DashboardOptions::default() }).await;
    let mut draft = site.draft("CreateQueue", &json!({"QueueName": "q"})).await;
    for path in ["/jobs", "/jobs/"] {
        draft.path = path.to_owned();
        let made = send(&site.router, draft.request(&site.admin)).await.ok();
        assert_eq!(made["QueueUrl"], format!("http://{HOST}/jobs/000000000000/q"), "{path}");
    }
    let mut request = draft.request(&site.admin);
    request.headers_mut().insert("x-forwarded-proto", "https".parse().unwrap());
    let made = send(&site.router, request).await.ok();
    assert_eq!(made["QueueUrl"], format!("https://{HOST}/jobs/000000000000/q"));
    // Some SDKs send requests to the address of the queue.
    let mut draft =
        site.draft("SendMessage", &json!({"QueueUrl": made["QueueUrl"], "MessageBody": "x"})).await;
    draft.path = "/jobs/000000000000/q".to_owned();
    send(&site.router, draft.request(&site.admin)).await.ok();
    draft.path = "/".to_owned();
    assert_eq!(send(&site.router, draft.request(&site.admin)).await.status, 404);
}

#[tokio::test]
async fn other_requests_are_not_the_doors_and_the_old_protocol_has_a_clear_answer() {
    let site = Site::with_queue().await;
    let mut request = site.draft("ListQueues", &json!({})).await.request(&site.admin);
    request
        .headers_mut()
        .insert("content-type", "application/x-www-form-urlencoded; charset=utf-8".parse().unwrap());
    let answer = send(&site.router, request).await;
    assert_eq!((answer.status, answer.content_type.as_str()), (400, "text/xml"));
    assert!(
        answer.text.contains("<Code>InvalidAction</Code>") && answer.text.contains("boto3"),
        "{answer:?}"
    );
    // With a GET, it names the action in the address. A page would say that all is well.
    for path in
        ["/?Action=SendMessage&MessageBody=x", "/000000000000/q?Version=2012-11-05&Action=DeleteQueue"]
    {
        for method in ["GET", "POST"] {
            let mut request = site.draft("ListQueues", &json!({})).await.request(&site.admin);
            *request.method_mut() = method.parse().unwrap();
            *request.uri_mut() = path.parse().unwrap();
            let answer = send(&site.router, request).await;
            assert_eq!((answer.status, answer.content_type.as_str()), (400, "text/xml"), "{method} {path}");
        }
    }
    let mut request = site.draft("ListQueues", &json!({})).await.request(&site.admin);
    *request.uri_mut() = "/jobs/confirm".parse().unwrap();
    let answer = send(&site.router, request).await;
    assert!(answer.status == 401 && answer.error.is_none(), "{answer:?}");
    for (action, code) in [
        ("Nothing", "InvalidAction"),
        ("StartMessageMoveTask", "AWS.SimpleQueueService.UnsupportedOperation"),
    ] {
        assert_eq!(site.ask(action, json!({})).await.code(), code);
    }
    assert_eq!(site.ask("SendMessage", json!({"MessageBody": "x"})).await.code(), "MissingParameter");
    assert_eq!(site.ask("SendMessage", json!({"QueueUrl": 7})).await.code(), "MalformedInput");
}
