package nvml

// This file says which model a board is: the word by which policies name it.

import (
	"strings"

	"gpuladder.dev/ladder/policies/fleet"
)

// models are boards by what NVML calls them, where the rule below would not
// find the word that people use, and all boards of the fleet catalog.
var models = withCatalog(map[string]string{
	"NVIDIA GH200 480GB":                                "GH200",
	"NVIDIA A10G":                                       "A10G",
	"NVIDIA RTX A6000":                                  "A6000",
	"NVIDIA RTX A5000":                                  "A5000",
	"NVIDIA RTX A4000":                                  "A4000",
	"NVIDIA RTX 6000 Ada Generation":                    "RTX6000Ada",
	"NVIDIA RTX 5000 Ada Generation":                    "RTX5000Ada",
	"NVIDIA RTX 4000 Ada Generation":                    "RTX4000Ada",
	"NVIDIA RTX 4000 SFF Ada Generation":                "RTX4000SFFAda",
	"NVIDIA RTX PRO 6000 Blackwell Server Edition":      "RTXPRO6000",
	"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTXPRO6000",
	"Quadro RTX 8000":                                   "RTX8000",
	"Quadro RTX 6000":                                   "RTX6000",
	"Quadro RTX 5000":                                   "RTX5000",
})

func withCatalog(models map[string]string) map[string]string {
	for _, board := range fleet.Boards() {
		models[board.ProductName] = board.Model
	}
	return models
}

// brands are words that say who sells a board, not what it is.
var brands = map[string]bool{
	"nvidia": true, "tesla": true, "quadro": true, "geforce": true, "grid": true, "graphics": true, "device": true,
}

// modelOf is the attribute `model` of a board. One that is not in the table has
// the first word of its name, split at spaces and hyphens, that is no brand and
// has a digit: "NVIDIA A30-SXM4-24GB" is an A30. RTX, GTX and TITAN are joined
// with what follows, as they say nothing alone: "NVIDIA GeForce RTX 4090" is an
// RTX4090. A name without such a word is the model as a whole.
func modelOf(product string) string {
	if model := models[product]; model != "" {
		return model
	}
	words := strings.FieldsFunc(product, func(r rune) bool { return r == ' ' || r == '-' })
	prefix := ""
	for _, word := range words {
		switch {
		case brands[strings.ToLower(word)]:
		case strings.ContainsAny(word, "0123456789"):
			return prefix + word
		case word == "RTX" || word == "GTX" || word == "TITAN" || word == "PRO":
			prefix += word
		default:
			prefix = ""
		}
	}
	return product
}
