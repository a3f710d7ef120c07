//! The derive macro `#[derive(Job)]` of punctual, re-exported as `punctual::Job`.
//!
//! Errors in attributes are reported at compile time, at their place: an unknown name with the one that was probably
//! meant, an invalid duration at its literal.

mod attributes;
mod duration;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{DeriveInput, parse_macro_input};

use crate::attributes::{Attributes, Backoff};

/// Implements the trait `Job` for a type.
///
/// The payload is the type as JSON, and `kind` is its stored name.
///
/// ```ignore
/// #[derive(punctual::Job, serde::Serialize, serde::Deserialize)]
/// #[job(kind = "email.send", queue = "mail", max_attempts = 8, backoff = "exp 5s..6h", timeout = "30s", unique = "key")]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl SendEmail {
///     fn key(&self) -> String {
///         format!("welcome:{}", self.to)
///     }
/// }
/// ```
///
/// | attribute | meaning |
/// |---|---|
/// | `kind = "…"` | the stored name, required; renaming the Rust type does not change it |
/// | `queue = "…"` | the queue of its jobs (default: `default`) |
/// | `max_attempts = n` | 1 to 10,000 |
/// | `backoff = "exp 5s..6h"` | or `linear 10s..1h`, `fixed 30s`; the first two have jitter, unless ` without jitter` follows |
/// | `timeout = "30s"` | the longest time of one run, up to 7 days |
/// | `lease = "20s"` | how long a silent worker keeps the job, 1 s to 24 h |
/// | `priority = "high"` | or `normal`, `low` |
/// | `unique = "method"` | a method `fn(&self) -> String` that returns the unique key |
///
/// Options that are left out are chosen by the queue, else by the defaults of punctual.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let attributes = Attributes::read(input)?;
    let name = &input.ident;
    let (generics, of, bounds) = input.generics.split_for_impl();
    let kind = &attributes.kind;
    let queue = attributes.queue.as_ref().map(|queue| quote!(const QUEUE: &'static str = #queue;));
    let options = options(&attributes);
    let unique = attributes.unique.as_ref().map(|method| {
        // With the span of the method: if it does not exist, the error is shown at the attribute.
        let key = quote_spanned!(method.span()=> Self::#method(self));
        quote! {
            fn unique(&self) -> ::core::option::Option<::punctual::Unique> {
                ::core::option::Option::Some(::punctual::Unique::key(#key))
            }
        }
    });
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::punctual::Job for #name #of #bounds {
            const KIND: &'static str = #kind;
            #queue
            #options
            #unique
        }
    })
}

/// Returns the method for the options, if there are any.
fn options(attributes: &Attributes) -> Option<TokenStream> {
    let duration = |ms: &u64| quote!(::core::time::Duration::from_millis(#ms));
    let mut set = Vec::new();
    if let Some(n) = &attributes.max_attempts {
        set.push(quote!(max_attempts: ::core::option::Option::Some(#n)));
    }
    if let Some(Backoff { growth, base_ms, max_ms, jitter }) = &attributes.backoff {
        let (base, max) = (duration(base_ms), max_ms.as_ref().map(duration));
        let max = max.map(|max| quote!(.max(#max)));
        let jitter = jitter.map(|jitter| quote!(.jitter(#jitter)));
        set.push(quote! {
            backoff: ::core::option::Option::Some(::punctual::Backoff::#growth(#base) #max #jitter)
        });
    }
    if let Some(ms) = &attributes.timeout_ms {
        let timeout = duration(ms);
        set.push(quote!(timeout: ::core::option::Option::Some(#timeout)));
    }
    if let Some(ms) = &attributes.lease_ms {
        let lease = duration(ms);
        set.push(quote!(lease: ::core::option::Option::Some(#lease)));
    }
    if let Some(level) = &attributes.priority {
        set.push(quote!(priority: ::core::option::Option::Some(::punctual::Priority::#level)));
    }
    (!set.is_empty()).then(|| {
        quote! {
            // If every option is set, there is nothing left to default.
            #[allow(clippy::needless_update)]
            fn options() -> ::punctual::JobOptions {
                ::punctual::JobOptions { #(#set,)* ..::core::default::Default::default() }
            }
        }
    })
}
