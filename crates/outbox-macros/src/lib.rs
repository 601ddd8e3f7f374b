//! `#[derive(Message)]` of the crate [`outbox`](https://docs.rs/outbox), which exports it and
//! documents it.
//!
//! | module | contents |
//! | --- | --- |
//! | `attributes` | the attribute `#[message(…)]`, at a struct, an enum or a variant |
//! | `template` | texts with fields in them: `"customer-{customer}"` |
//! | `description` | the attributes of one event type, resolved against its fields |
//! | `derive` | the generated code |
//! | `serde_attributes` | the serde attributes that apply to the payload of a variant |

mod attributes;
mod derive;
mod description;
mod serde_attributes;
mod template;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Implements `outbox::Message` for a struct; `IntoEvent` and `FromEvent` for an enum.
///
/// The documentation is at the re-export in the crate `outbox`.
#[proc_macro_derive(Message, attributes(message, serde))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    derive::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
