// Package message holds a message, its properties, its ids and its stored form: the bytes that lie in the
// commit log and in the bodies of pull answers (docs/formats/commitlog.md); and the names of the topics that
// mean something to both sides.
//
// It knows neither files nor connections. Nothing on the way of a message through the broker builds a map or a
// string here: properties stay in their encoded form and are searched in place.
package message
