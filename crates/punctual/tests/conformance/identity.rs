//! Which store it is.

use std::future::Future;

use futures_util::future::join_all;
use punctual::store::Identity;

use crate::fixture::{Fixture, memory, reopen};

async fn of(t: &Fixture) -> Identity {
    t.store.identity().await.expect("a store that is there")
}

fn boxed<'a>(
    call: impl Future<Output = Identity> + 'a,
) -> std::pin::Pin<Box<dyn Future<Output = Identity> + 'a>> {
    Box::pin(call)
}

/// S3: the identity of a store is made once; each handle answers it, also those that ask first and together.
pub(crate) async fn a_store_has_one_identity(t: Fixture) {
    let mut others = Vec::new();
    if let Some(place) = &t.place {
        others = vec![reopen(place).await, reopen(place).await];
    }
    let told = join_all([&t].into_iter().chain(&others).map(|each| boxed(of(each)))).await;
    assert!(told.iter().all(|identity| *identity == told[0]), "{told:?}");
    assert_eq!(of(&t).await, told[0]);
    if let Some(place) = &t.place {
        assert_eq!(of(&reopen(place).await).await, told[0]);
    }
    assert_ne!(of(&memory().await).await, told[0], "another store is another one");
    assert_eq!(told[0].to_string().len(), 16);
    let job = t.id(1);
    assert_eq!(told[0].message_id(job), format!("{}_{job}", told[0]));
}
